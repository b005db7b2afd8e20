"""Split attention: one SDPA call per segment, over the keys of its ancestors and its own.

It computes nothing that the mask of the packed row would throw away. A prompt ``a b`` with the responses ``c`` and
``d e`` needs three calls: ``a b`` over ``a b``, ``c`` over ``a b c``, ``d e`` over ``a b d e``; each is causal with the
last query aligned to the last key ("lower right").

With a sliding window a call leaves out the keys of its path that lie before the reach of its first query, and has a
mask where its last query does not see all that are left: under a window of 2 the calls are ``a b`` over ``a b``, ``c``
over ``b c``, and ``d e`` over ``b d e``, where a mask keeps ``b`` from ``e``.

Shape letters: B rows, T slots of a row, N query heads, K key heads, H head dim, q slots of a segment, k of its path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from packed_impl.forest import Forest
from packed_impl.kernel_call import as_under_autocast, check_kernel_call, native_gqa
from packed_impl.windows import layer_type


@dataclass(frozen=True, eq=False)
class SegmentCall:
    """What one segment attends to.

    Args:
        path: Indices of the segments whose keys it sees, root first, itself last.
        bias: Lower-right causal bias over these keys, within the window, or None where the causal square says it all.
        num_skipped: Number of first keys of the path's first segment that are out of the window's reach.
    """

    path: tuple[int, ...]
    bias: Tensor | None
    num_skipped: int = 0


@dataclass(frozen=True, eq=False)
class RowCalls:
    """The calls of one row: segment lengths in row order, one call per segment, and the window that they obey."""

    lengths: tuple[int, ...]
    calls: tuple[SegmentCall, ...]
    window: int | None = None


SplitCalls = tuple[RowCalls, ...]
"""The plan of every row; it serves every layer of one window."""


def plan_split_calls(forests: Sequence[Forest], device: torch.device, window: int | None = None) -> SplitCalls:
    """Plan the SDPA calls of every row.

    Args:
        forests: The rows.
        device: Where attention runs. CUDA kernels know the lower-right causal pattern by name; elsewhere it is a mask.
        window: Sliding window of the layers, None for none.

    Returns:
        One plan per row.
    """
    rows = []
    for forest in forests:
        lengths = tuple(segment.length for segment in forest.segments)
        calls = tuple(_segment_call(forest.path(index), lengths, device, window) for index in range(len(lengths)))
        rows.append(RowCalls(lengths, calls, window))
    return tuple(rows)


def _segment_call(
    path: tuple[int, ...], lengths: Sequence[int], device: torch.device, window: int | None
) -> SegmentCall:
    num_queries, num_keys, num_skipped = lengths[path[-1]], sum(lengths[index] for index in path), 0
    if window is not None:
        num_skipped = max(0, num_keys - num_queries - window + 1)  # what lies before the reach of the first query
        num_keys -= num_skipped
        while num_skipped >= lengths[path[0]]:
            num_skipped -= lengths[path[0]]
            path = path[1:]
    return SegmentCall(path, _bias(num_queries, num_keys, device, window), num_skipped)


def _bias(num_queries: int, num_keys: int, device: torch.device, window: int | None) -> Tensor | None:
    first_is_seen = window is None or num_keys <= window  # by the last query, and so by all
    if first_is_seen and num_keys == num_queries:
        return None
    if first_is_seen and device.type == "cuda":
        return causal_lower_right(num_queries, num_keys)  # no mask is built where a fused kernel can run
    causal = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)
    return causal if window is None else causal.triu(num_keys - num_queries - window + 1)


def split_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    split_calls: SplitCalls | Mapping[str, SplitCalls],
    scaling: float,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention of packed rows in the form that transformers' ``AttentionInterface`` calls.

    Args:
        module: The attention module, asked for its layer's type where there are several.
        query: [B, N, T, H].
        key: [B, K, T, H].
        value: [B, K, T, H].
        attention_mask: None; the plan says it all.
        split_calls: The plan of every row, a keyword argument of the model call; in a model of several layer types a
            mapping from layer type to plan.
        scaling: Factor on the scores.
        **kwargs: What else transformers passes; refused where it would change the result.

    Returns:
        The output, [B, T, N, H], and None for the weights.

    Raises:
        ValueError: A mask, mixed dtypes, dropout or another variant that is not computed here, or a layer whose
            sliding window is another one than that of its plan.
    """
    calls = split_calls[layer_type(module)] if isinstance(split_calls, Mapping) else split_calls
    query, key, value = as_under_autocast(query, key, value)
    check_kernel_call("split", query, key, value, kwargs, window=calls[0].window)
    if attention_mask is not None:
        raise ValueError("split attention takes no attention_mask: the segments say who attends to whom")
    rows = zip(calls, torch.split(query, 1), torch.split(key, 1), torch.split(value, 1), strict=True)
    return torch.cat([_attend_row(plan, q, k, v, scaling) for plan, q, k, v in rows]), None


def _attend_row(plan: RowCalls, q_1NTH: Tensor, k_1KTH: Tensor, v_1KTH: Tensor, scaling: float) -> Tensor:
    """One row, [1, T, N, H]. Tensors are split once, so that autograd joins their gradients once."""
    queries, keys, values = (torch.split(x, list(plan.lengths), dim=2) for x in (q_1NTH, k_1KTH, v_1KTH))
    outputs = []
    for q, call in zip(queries, plan.calls, strict=True):
        k, v = (_on_path(parts, call) for parts in (keys, values))
        k, v, enable_gqa = native_gqa(q, k, v)
        output_1NqH = scaled_dot_product_attention(
            q, k, v, attn_mask=call.bias, is_causal=call.bias is None, scale=scaling, enable_gqa=enable_gqa
        )
        outputs.append(output_1NqH.transpose(1, 2))
    return torch.cat(outputs, dim=1)


def _on_path(parts: Sequence[Tensor], call: SegmentCall) -> Tensor:
    """The keys, or values, that a call goes over."""
    first, *rest = (parts[index] for index in call.path)
    return torch.cat([first[:, :, call.num_skipped :], *rest], dim=2)

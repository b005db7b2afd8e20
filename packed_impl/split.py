"""Split attention: one SDPA call per segment, over the keys of its ancestors and its own.

It computes nothing that the mask of the packed row would throw away. A prompt ``a b`` with the responses ``c`` and
``d e`` needs three calls: ``a b`` over ``a b``, ``c`` over ``a b c``, ``d e`` over ``a b d e``; each is causal with the
last query aligned to the last key ("lower right").

Shape letters: B rows, T slots of a row, N query heads, K key heads, H head dim, q slots of a segment, k of its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from packed_impl.forest import Forest
from packed_impl.kernel_call import check_kernel_call, native_gqa


@dataclass(frozen=True, eq=False)
class SegmentCall:
    """What one segment attends to.

    Args:
        path: Indices of the segments whose keys it sees, root first, itself last.
        bias: Lower-right causal bias over that path, or None where the call is square (a root).
    """

    path: tuple[int, ...]
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class RowCalls:
    """The calls of one row: segment lengths in row order, and one call per segment."""

    lengths: tuple[int, ...]
    calls: tuple[SegmentCall, ...]


def plan_split_calls(forests: Sequence[Forest], device: torch.device) -> tuple[RowCalls, ...]:
    """Plan the SDPA calls of every row; the same plan serves every layer.

    Args:
        forests: The rows.
        device: Where attention runs. CUDA kernels know the lower-right causal pattern by name; elsewhere it is a mask.

    Returns:
        One plan per row.
    """
    rows = []
    for forest in forests:
        lengths = tuple(segment.length for segment in forest.segments)
        paths = [forest.path(index) for index in range(len(lengths))]
        calls = [SegmentCall(path, _bias([lengths[index] for index in path], device)) for path in paths]
        rows.append(RowCalls(lengths, tuple(calls)))
    return tuple(rows)


def _bias(path_lengths: Sequence[int], device: torch.device) -> Tensor | None:
    if len(path_lengths) == 1:
        return None
    num_queries, num_keys = path_lengths[-1], sum(path_lengths)
    if device.type == "cuda":
        return causal_lower_right(num_queries, num_keys)  # no mask is built where a fused kernel can run
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)


def split_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    split_calls: tuple[RowCalls, ...],
    scaling: float,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention of packed rows in the form that transformers' ``AttentionInterface`` calls.

    Args:
        module: The attention module; not used.
        query: [B, N, T, H].
        key: [B, K, T, H].
        value: [B, K, T, H].
        attention_mask: None; the plan says it all.
        split_calls: The plan of every row, a keyword argument of the model call.
        scaling: Factor on the scores.
        **kwargs: What else transformers passes; refused where it would change the result.

    Returns:
        The output, [B, T, N, H], and None for the weights.

    Raises:
        ValueError: A mask, mixed dtypes, dropout, a sliding window or another variant that is not computed here.
    """
    check_kernel_call("split", query, key, value, kwargs)
    if attention_mask is not None:
        raise ValueError("split attention takes no attention_mask: the segments say who attends to whom")
    rows = zip(split_calls, torch.split(query, 1), torch.split(key, 1), torch.split(value, 1), strict=True)
    return torch.cat([_attend_row(plan, q, k, v, scaling) for plan, q, k, v in rows]), None


def _attend_row(plan: RowCalls, q_1NTH: Tensor, k_1KTH: Tensor, v_1KTH: Tensor, scaling: float) -> Tensor:
    """One row, [1, T, N, H]. Tensors are split once, so that autograd joins their gradients once."""
    queries, keys, values = (torch.split(x, list(plan.lengths), dim=2) for x in (q_1NTH, k_1KTH, v_1KTH))
    outputs = []
    for q, call in zip(queries, plan.calls, strict=True):
        k, v = (torch.cat([parts[index] for index in call.path], dim=2) for parts in (keys, values))
        k, v, enable_gqa = native_gqa(q, k, v)
        output_1NqH = scaled_dot_product_attention(
            q, k, v, attn_mask=call.bias, is_causal=call.bias is None, scale=scaling, enable_gqa=enable_gqa
        )
        outputs.append(output_1NqH.transpose(1, 2))
    return torch.cat(outputs, dim=1)

"""Split attention: one SDPA call per segment, over the keys of its ancestors and its own.

It computes nothing that the mask of the packed row would throw away. A prompt ``a b`` with the responses ``c`` and
``d e`` needs three calls: ``a b`` over ``a b``, ``c`` over ``a b c``, ``d e`` over ``a b d e``; each is causal with the
last query aligned to the last key ("lower right").

With a sliding window a call leaves out the keys of its path that lie before the reach of its first query, and has a
mask where its last query does not see all that are left: under a window of 2 the calls are ``a b`` over ``a b``, ``c``
over ``b c``, and ``d e`` over ``b d e``, where a mask keeps ``b`` from ``e``.

A CPU kernel takes no pattern by name, and makes of a mask of booleans one of numbers that it keeps for the backward
pass, for each call of each layer. Here masks are numbers from the start, and parts of one, which all calls and layers
share: who sees what depends on how far a key lies behind its query alone, so that the mask of fewer queries or of a
shorter path is a corner of that of more.

Shape letters: B rows, T slots of a row, N query heads, K key heads, H head dim, q slots of a segment, k of its path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import CausalBias, causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from packed_impl.forest import Forest
from packed_impl.kernel_call import as_under_autocast, check_kernel_call, native_gqa
from packed_impl.windows import layer_type


@dataclass(frozen=True, eq=False)
class SegmentCall:
    """What one segment attends to.

    Args:
        path: Indices of the segments whose keys it sees, root first, itself last.
        bias: Lower-right causal bias over these keys, within the window: 0 and minus infinity, booleans, or a pattern
            that CUDA knows by name; None where the causal square says it all.
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


def plan_split_calls(
    forests: Sequence[Forest], device: torch.device, dtype: torch.dtype = torch.float32, window: int | None = None
) -> SplitCalls:
    """Plan the SDPA calls of every row.

    Args:
        forests: The rows.
        device: Where attention runs. CUDA kernels know the lower-right causal pattern by name; elsewhere it is a mask.
        dtype: Of queries and keys, as far as it is known: the kernel takes a mask of no other.
        window: Sliding window of the layers, None for none.

    Returns:
        One plan per row.
    """
    lengths_of_rows = [tuple(segment.length for segment in forest.segments) for forest in forests]
    reaches = [
        [_reach(forest.path(index), lengths, window) for index in range(len(lengths))]
        for forest, lengths in zip(forests, lengths_of_rows, strict=True)
    ]
    biases = _Biases.of([reach for row in reaches for reach in row], device, dtype, window)
    return tuple(
        RowCalls(lengths, tuple(SegmentCall(r.path, biases.of_call(r), r.num_skipped) for r in row), window)
        for lengths, row in zip(lengths_of_rows, reaches, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Reach:
    """Which keys a segment's call goes over, and what it needs to be told about them."""

    path: tuple[int, ...]
    num_skipped: int
    num_queries: int
    num_keys: int
    first_is_seen: bool
    """By the last query, and so by all."""

    @property
    def is_square(self) -> bool:
        return self.first_is_seen and self.num_keys == self.num_queries


def _reach(path: tuple[int, ...], lengths: Sequence[int], window: int | None) -> _Reach:
    num_queries, num_keys, num_skipped = lengths[path[-1]], sum(lengths[index] for index in path), 0
    if window is not None:
        num_skipped = max(0, num_keys - num_queries - window + 1)  # what lies before the reach of the first query
        num_keys -= num_skipped
        while num_skipped >= lengths[path[0]]:
            num_skipped -= lengths[path[0]]
            path = path[1:]
    return _Reach(path, num_skipped, num_queries, num_keys, window is None or num_keys <= window)


@dataclass(frozen=True, slots=True)
class _Biases:
    """The biases of all calls of a plan.

    Args:
        device: Where attention runs.
        whole: The mask that every call's is a corner of, [most queries, most keys before a segment + most queries].
    """

    device: torch.device
    whole: Tensor

    @classmethod
    def of(cls, reaches: Sequence[_Reach], device: torch.device, dtype: torch.dtype, window: int | None) -> _Biases:
        masked = [reach for reach in reaches if not (reach.is_square or _is_known_by_name(reach, device))]
        if not masked:
            return cls(device, torch.empty(0, 0))
        most_queries = max(reach.num_queries for reach in masked)
        most_before = max(reach.num_keys - reach.num_queries for reach in masked)
        shape = most_queries, most_before + most_queries
        seen = torch.ones(shape, dtype=torch.bool, device=device).tril(most_before)
        if window is not None:
            seen = seen.triu(most_before - window + 1)
        if device.type != "cpu":
            return cls(device, seen)
        return cls(device, torch.zeros(shape, dtype=dtype).masked_fill_(~seen, -torch.inf))

    def of_call(self, reach: _Reach) -> Tensor | None:
        if reach.is_square:
            return None
        if _is_known_by_name(reach, self.device):
            return causal_lower_right(reach.num_queries, reach.num_keys)
        most_queries, width = self.whole.shape
        first = (width - most_queries) - (reach.num_keys - reach.num_queries)
        return self.whole[: reach.num_queries, first : first + reach.num_keys]


def _is_known_by_name(reach: _Reach, device: torch.device) -> bool:
    """Whether no mask is built, so that a fused kernel can run."""
    return reach.first_is_seen and device.type == "cuda"


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
        bias = _in_dtype(call.bias, q.dtype)
        output_1NqH = scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=bias is None, scale=scaling, enable_gqa=enable_gqa
        )
        outputs.append(output_1NqH.transpose(1, 2))
    return torch.cat(outputs, dim=1)


def _in_dtype(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The bias as it is; a mask of numbers in the dtype of the queries, which autocast makes another one."""
    if bias is None or isinstance(bias, CausalBias) or not bias.is_floating_point():
        return bias
    return bias.to(dtype)


def _on_path(parts: Sequence[Tensor], call: SegmentCall) -> Tensor:
    """The keys, or values, that a call goes over."""
    first, *rest = (parts[index] for index in call.path)
    return torch.cat([first[:, :, call.num_skipped :], *rest], dim=2)

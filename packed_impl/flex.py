"""FlexAttention over packed rows, with a block table computed from segment lengths alone.

Neither the table nor the mask function needs a T x T matrix: the table counts allowed cells per block from the
pieces into which block edges cut segments, and the mask function looks up where the descendants of a key's segment end,
or, in a row where these do not lie together, the query and the key's segment in a T x S table.

Shape letters: B rows, T slots of a row, S segments of a row, P pieces of segments, M blocks of a row, N query heads,
K key heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from packed_impl.forest import Forest, positions, segment_ids, visible_segments
from packed_impl.kernel_call import as_under_autocast, check_kernel_call

BLOCK_SIZE = 128

_MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether a query may attend to a key: row, head, query slot, key slot."""


def allowed_cells(forest: Forest, block_size: int, window: int | None = None) -> Tensor:
    """Count the cells of each block in which a query may attend to a key.

    Block edges cut segments into P pieces, each a run of slots and of positions. Between a piece and one that it sees,
    cell (x, y) is allowed where the key is 0 to ``window - 1`` positions behind the query; behind by at least 0 without
    a window. A diagonal cuts each such rectangle, so its cells are counted by a formula (`_cells_behind`).

    Args:
        forest: The row.
        block_size: Slots along each side of a block.
        window: Sliding window of the layers, None for none.

    Returns:
        int64, [M query, M key]; a block that reaches beyond the row counts only cells within it.
    """
    num_blocks = -(-forest.num_slots // block_size)
    edges = {segment.start for segment in forest.segments} | set(range(0, forest.num_slots, block_size))
    starts_P = torch.tensor(sorted(edges))
    lengths_P = starts_P.diff(append=torch.tensor([forest.num_slots]))
    segments_P, positions_P = segment_ids(forest)[starts_P], positions(forest)[starts_P]
    apart_PP = positions_P[:, None] - positions_P[None, :]
    counts_PP = _cells_behind(0, apart_PP, lengths_P)
    if window is not None:
        counts_PP -= _cells_behind(window, apart_PP, lengths_P)
    counts_PP *= visible_segments(forest)[segments_P[:, None], segments_P[None, :]]
    blocks_P = starts_P // block_size
    counts_MP = torch.zeros(num_blocks, len(starts_P), dtype=torch.int64).index_add_(0, blocks_P, counts_PP)
    return torch.zeros(num_blocks, num_blocks, dtype=torch.int64).index_add_(1, blocks_P, counts_MP)


def _cells_behind(distance: int, apart_PP: Tensor, lengths_P: Tensor) -> Tensor:
    """Count the cells of each pair of pieces whose key is at least ``distance`` positions behind its query.

    Query x of n and key y of m are ``apart + x - y`` positions apart. Query x has ``x - c + 1`` such keys, but no fewer
    than 0 and no more than m, where ``c = distance - apart``; sums of such ramps are triangular numbers.

    Args:
        distance: Positions.
        apart_PP: First position of the query's piece minus that of the key's.
        lengths_P: Number of slots of each piece.

    Returns:
        int64, [P query, P key].
    """

    def triangular(z: Tensor) -> Tensor:
        return torch.where(z > 0, z * (z + 1) // 2, 0)

    n, m, c = lengths_P[:, None], lengths_P[None, :], distance - apart_PP
    return triangular(n - c) - triangular(-c) - triangular(n - m - c) + triangular(-m - c)


def block_mask(
    forests: Sequence[Forest],
    device: torch.device,
    block_size: int = BLOCK_SIZE,
    *,
    window: int | None = None,
) -> BlockMask:
    """The rule of the forests as a ``BlockMask``.

    Args:
        forests: The rows, all of T slots.
        device: Where attention runs.
        block_size: Slots along each side of a block.
        window: Sliding window of the layers, None for none.

    Returns:
        The mask, of shape [B, 1, T, T]. A block that reaches beyond the row is never "full", as in torch.
    """
    counts = torch.stack([allowed_cells(forest, block_size, window) for forest in forests])[:, None]
    is_full = counts == block_size**2
    num_partial, partial = _listed((counts > 0) & ~is_full)
    num_full, full = _listed(is_full)
    num_slots = forests[0].num_slots
    mask_mod = _mask_mod(forests, device) if window is None else _within(window, forests, device)
    mask = BlockMask.from_kv_blocks(
        num_partial.to(device),
        partial.to(device),
        num_full.to(device),
        full.to(device),
        BLOCK_SIZE=block_size,
        mask_mod=mask_mod,
        seq_lengths=(num_slots, num_slots),
    )
    mask.ndim = len(mask.shape)  # type: ignore[attr-defined]  # transformers' GPT-2 asks before it hands a mask on
    return mask


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """A table of chosen blocks as torch stores it: how many per row of blocks, and their indices, chosen ones first."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.int()


def _mask_mod(forests: Sequence[Forest], device: torch.device) -> _MaskMod:
    """The rule as a function of slots. Each lookup costs, in a kernel and more so without one, so there are few."""
    stops = [_subtree_stops(forest) for forest in forests]
    if any(found is None for found in stops):
        return _mask_mod_by_table(forests, device)
    lengths = [torch.tensor([segment.length for segment in forest.segments]) for forest in forests]
    pairs = zip(stops, lengths, strict=True)
    stops_BT = torch.stack([torch.repeat_interleave(torch.tensor(found), each) for found, each in pairs]).to(device)

    def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < stops_BT[row, key])

    return mask_mod


def _subtree_stops(forest: Forest) -> list[int] | None:
    """The slot behind each segment and all that descend from it, where these lie together; None where some do not.

    The prompt of ``a b | c | d e`` is seen by slots 0 to 4, so its stop is 5; those of the responses are 3 and 5.
    """
    sizes = [segment.length for segment in forest.segments]
    for index, segment in reversed(list(enumerate(forest.segments))):
        if segment.parent is not None:
            sizes[segment.parent] += sizes[index]
    stops = [segment.start + size for segment, size in zip(forest.segments, sizes, strict=True)]
    # Whatever stands between a segment and its descendants pushes one of them out of the run that they would fill.
    together = all(s.parent is None or stop <= stops[s.parent] for s, stop in zip(forest.segments, stops, strict=True))
    return stops if together else None


def _mask_mod_by_table(forests: Sequence[Forest], device: torch.device) -> _MaskMod:
    num_segments = max(len(forest.segments) for forest in forests)
    sees_BTS = torch.zeros(len(forests), forests[0].num_slots, num_segments, dtype=torch.bool)
    for row, forest in enumerate(forests):
        sees_BTS[row, :, : len(forest.segments)] = visible_segments(forest)[segment_ids(forest)]
    sees_BTS = sees_BTS.to(device)
    ids_BT = torch.stack([segment_ids(forest) for forest in forests]).to(device)

    def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & sees_BTS[row, query, ids_BT[row, key]]

    return mask_mod


def _within(window: int, forests: Sequence[Forest], device: torch.device) -> _MaskMod:
    """The rule within a sliding window. The function bears its window, so that a layer can be held against it."""
    seen = _mask_mod(forests, device)
    positions_BT = torch.stack([positions(forest) for forest in forests]).to(device)

    def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return seen(row, head, query, key) & (positions_BT[row, query] - positions_BT[row, key] < window)

    mask_mod.window = window  # type: ignore[attr-defined]
    return mask_mod


def effective_mask(mask: BlockMask) -> Tensor:
    """Rebuild, cell by cell, what a kernel that obeys the block table computes.

    A cell counts where its block is listed as full, or where it is listed as partial and the mask function allows it.

    Args:
        mask: A mask with one head.

    Returns:
        bool, [B, T query, T key].

    Raises:
        ValueError: A block listed twice, or as both full and partial: its cells would be attended to twice.
    """
    num_rows, _, num_queries, num_keys = mask.shape
    query_block, key_block = mask.BLOCK_SIZE
    partial = _listed_blocks(mask.kv_num_blocks, mask.kv_indices)
    full = torch.zeros_like(partial)
    if mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None:
        full = _listed_blocks(mask.full_kv_num_blocks, mask.full_kv_indices)
    if (partial + full > 1).any():
        raise ValueError("a block is listed twice: its cells would be attended to twice")

    def cells(blocks: Tensor) -> Tensor:
        spread = blocks.bool().repeat_interleave(query_block, dim=1).repeat_interleave(key_block, dim=2)
        return spread[:, :num_queries, :num_keys]

    device = partial.device
    row, query, key = torch.meshgrid(
        *(torch.arange(n, device=device) for n in (num_rows, num_queries, num_keys)), indexing="ij"
    )
    return cells(full) | (cells(partial) & mask.mask_mod(row, torch.zeros_like(row), query, key))


def _listed_blocks(num_blocks: Tensor, indices: Tensor) -> Tensor:
    """How often each block is listed; int64, [B, M query, M key]."""
    counts, listed = num_blocks[:, 0, :, None], indices[:, 0].long()
    is_listed = (torch.arange(listed.shape[-1], device=listed.device) < counts).long()
    return torch.zeros_like(listed).scatter_add_(-1, listed, is_listed)


@cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=True)  # dynamic: packed rows differ in length from step to step


@contextmanager
def _without_compilation() -> Iterator[None]:
    """Let a plain call of ``flex_attention`` run torch's eager kernel at once.

    Outside, such a call first has itself traced, anew each time, and then runs these same operations: on a tiny row
    tracing takes many times as long as the attention. The flag is meant for forward passes, and there is no other on a
    CPU.
    """
    before = flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        yield
    finally:
        flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before


def flex_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask | None,
    *,
    scaling: float,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """FlexAttention in the form that transformers' ``AttentionInterface`` calls; its fused kernel on CUDA only.

    Args:
        module: The attention module; not used.
        query: [B, N, T, H].
        key: [B, K, T, H].
        value: [B, K, T, H].
        attention_mask: The block mask.
        scaling: Factor on the scores.
        **kwargs: What else transformers passes; refused where it would change the result.

    Returns:
        The output, [B, T, N, H], and None for the weights.

    Raises:
        ValueError: No block mask, mixed dtypes, dropout or another variant not computed here, or a layer whose sliding
            window is another one than that of its mask.
    """
    if not isinstance(attention_mask, BlockMask):
        raise ValueError(f"flex attention needs a BlockMask, got {type(attention_mask).__name__}")
    window = getattr(attention_mask.mask_mod, "window", None)
    query, key, value = as_under_autocast(query, key, value)
    check_kernel_call("flex", query, key, value, kwargs, window=window)
    fused = query.device.type == "cuda"
    kernel = _compiled_flex_attention() if fused else cast(Callable[..., Tensor], flex_attention)
    enable_gqa = query.shape[1] != key.shape[1]
    with nullcontext() if fused else _without_compilation():
        output = kernel(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=enable_gqa)
    return output.transpose(1, 2).contiguous(), None

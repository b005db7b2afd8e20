"""Equivalent mutants of prefix trees, block-diagonal rows and bins: other rows that hold the same sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from verify.cases import CASE_KINDS, CaseKind
from verify.faults.controls import as_many, groups_reordered, junk_in_padding, padding_in_front, rows_reordered
from verify.faults.fault import BINS, BLOCK_DIAGONAL, PREFIX_TREE, EquivalentMutant
from verify.faults.layout import padding_behind
from verify.faults.layout_conditions import (
    BINS_HOLD_SEVERAL,
    BINS_PADDED,
    MASKED_TOKEN,
    SEVERAL_SEQUENCES,
    TWO_LEVELS,
)
from verify.faults.rows import Held, Piece, Rows
from verify.faults.stages import Layout, Supervision, Targets
from verify.groups import PreferenceGroup

_EXAMPLES: tuple[CaseKind, ...] = ("examples",)


def branches_reordered(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Depth first as before, but the last child of every segment comes first."""
    rows = []
    for row in honest(groups).rows:
        order: list[int] = []
        waiting = [index for index, piece in enumerate(row) if piece.parent is None]
        while waiting:
            order.append(waiting.pop())
            waiting += [index for index, piece in enumerate(row) if piece.parent == order[-1]]
        moved = {old: new for new, old in enumerate(order)}
        rows.append(tuple(replace(p, parent=moved.get(p.parent) if p.parent is not None else None)
                          for p in (row[index] for index in order)))  # fmt: skip
    return Rows(tuple(rows))


def _in_two(piece: Piece, at: int) -> tuple[Piece, Piece]:
    """A piece cut in front of one of its tokens; the second part still lacks its parent."""
    first: list[Held] = []
    second: list[Held] = []
    length = len(piece.ids)
    for held in piece.held:
        start = length - held.num_behind - len(held.supervised)
        before = held.supervised[: max(0, at - start)]
        behind = held.supervised[len(before) :]
        if before:
            first.append(Held(held.completion, before, at - start - len(before)))
        if behind:
            second.append(replace(held, supervised=behind))
    return replace(piece, ids=piece.ids[:at], held=tuple(first)), Piece(piece.ids[at:], None, tuple(second))


def segments_in_two(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Every segment of two or more tokens is a chain of two: the same paths, split at other places."""
    rows = []
    for row in honest(groups).rows:
        pieces: list[Piece] = []
        end_of: list[int] = []  # where the last part of each segment has come to
        for piece in row:
            hung = replace(piece, parent=None if piece.parent is None else end_of[piece.parent])
            if piece.is_padding or len(piece.ids) < 2:
                pieces.append(hung)
            else:
                first, second = _in_two(hung, len(piece.ids) // 2)
                pieces += [first, replace(second, parent=len(pieces))]
            end_of.append(len(pieces) - 1)
        rows.append(tuple(pieces))
    return Rows(tuple(rows))


def ignored_targets_replaced(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Tokens that no loss counts have some other label, as where an ignored one is clamped to a valid id."""
    targets = honest(rows, predictors)
    return replace(targets, token_ids=torch.where(targets.counted, targets.token_ids, 0))


LAYOUT_MUTANTS = (
    EquivalentMutant(
        name="tree-branches-reordered",
        stage="layout",
        replacement=branches_reordered,
        what="The branches of every segment of a prefix tree stand in the opposite order and the map follows.",
        kinds=CASE_KINDS,
        bites_where=TWO_LEVELS,
        packing=PREFIX_TREE,
        why_equal="branches do not see each other, so their order in the row is free",
    ),
    EquivalentMutant(
        name="tree-split-elsewhere",
        stage="layout",
        replacement=segments_in_two,
        what="Every segment of a prefix tree is a chain of two.",
        kinds=CASE_KINDS,
        packing=PREFIX_TREE,
        why_equal="every path from root to leaf holds the same tokens",
    ),
    EquivalentMutant(
        name="tree-padding-behind",
        stage="layout",
        replacement=partial(padding_behind, partial(as_many, 3)),
        what="Rows of prefix trees end in three slots of padding.",
        imitates=("A62", "A74"),
        kinds=CASE_KINDS,
        bites_where=TWO_LEVELS,
        packing=PREFIX_TREE,
        why_equal="nothing attends to padding",
    ),
    EquivalentMutant(
        name="examples-reordered",
        stage="layout",
        replacement=groups_reordered,
        what="The last example of a row comes first and the map follows.",
        kinds=_EXAMPLES,
        bites_where=SEVERAL_SEQUENCES,
        packing=BLOCK_DIAGONAL,
        why_equal="examples do not see each other, so their order in the row is free",
    ),
    EquivalentMutant(
        name="examples-padding-behind",
        stage="layout",
        replacement=partial(padding_behind, partial(as_many, 200)),
        what="Rows of examples end in 200 slots of padding.",
        imitates=("A62", "A74"),
        kinds=_EXAMPLES,
        packing=BLOCK_DIAGONAL,
        why_equal="nothing attends to padding, and no target is in it",
    ),
    EquivalentMutant(
        name="examples-padding-in-front",
        stage="layout",
        replacement=partial(padding_in_front, 2),
        what="Rows of examples start with two slots of padding.",
        imitates=("A22", "A62"),
        kinds=_EXAMPLES,
        packing=BLOCK_DIAGONAL,
        why_equal="nothing attends to padding, and positions are counted on paths",
    ),
    EquivalentMutant(
        name="ignored-targets-replaced",
        stage="supervision",
        replacement=ignored_targets_replaced,
        what="Tokens that are not supervised have id 0 as their label.",
        imitates=("A57",),
        kinds=_EXAMPLES,
        bites_where=MASKED_TOKEN,
        packing=BLOCK_DIAGONAL,
        why_equal="their log-probs enter no loss, and none of them is compared",
    ),
    EquivalentMutant(
        name="bins-reordered",
        stage="layout",
        replacement=rows_reordered,
        what="The last bin of a batch comes first and the map follows.",
        kinds=CASE_KINDS,
        bites_where=BINS_HOLD_SEVERAL,
        packing=BINS,
        why_equal="rows do not see each other, so their order in the batch is free",
    ),
    EquivalentMutant(
        name="junk-in-the-padding-of-bins",
        stage="layout",
        replacement=junk_in_padding,
        what="Padding slots of bins hold ordinary token ids.",
        imitates=("A32",),
        kinds=CASE_KINDS,
        bites_where=BINS_PADDED,
        packing=BINS,
        why_equal="nothing attends to padding, whatever it holds",
    ),
)

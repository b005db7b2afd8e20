"""Equivalent mutants: mutations that provably compute the same. Whoever flags one raises a false alarm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.checks.check import ExactCheckName
from verify.faults.conditions import (
    MORE_THAN_64_TOKENS,
    PADDED_ROW,
    PROMPT_OF_TWO,
    SAVES_200_SLOTS,
    SEVERAL_GROUPS,
)
from verify.faults.fault import ROW_PER_GROUP, EquivalentMutant
from verify.faults.layout import padding_behind
from verify.faults.rows import Piece, Rows, padded, root_of
from verify.faults.stages import (
    Accumulation,
    Batch,
    Forward,
    Layout,
    Mask,
    Positions,
    Reduction,
    Reference,
    Targets,
    Terms,
    TokenLogps,
)
from verify.groups import PreferenceGroup


def unchanged(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """The honest layout."""
    return honest(groups)


def positions_shifted(by: int, honest: Positions, rows: Rows) -> Tensor:
    """All positions of a row moved together."""
    return honest(rows) + by


def positions_shifted_by_tree(honest: Positions, rows: Rows) -> Tensor:
    """Each tree starts at its slot number instead of 0."""
    return honest(rows) + rows.tree_ids.new_tensor(
        [[_start(row, root) for root in ids] for row, ids in zip(rows.rows, rows.tree_ids.tolist(), strict=True)]
    )


def _start(row: tuple[Piece, ...], index: int) -> int:
    return sum(len(piece.ids) for piece in row[:index])


def branches_reordered(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Rejected before chosen in the row; each piece keeps the number of its completion."""
    rows = []
    for row in honest(groups).rows:
        pieces = list(row)
        for index in range(len(row) - 1):
            first, second = row[index], row[index + 1]
            if first.completion is not None and second.parent == first.parent is not None:
                pieces[index], pieces[index + 1] = second, first
        rows.append(tuple(pieces))
    return Rows(tuple(rows))


def prompt_in_two_segments(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Prompts are cut in two, the second half hanging on the first: the same paths in a deeper tree."""
    rows = []
    for row in honest(groups).rows:
        pieces: list[Piece] = []
        moved: dict[int, int] = {}
        for index, piece in enumerate(row):
            parent = None if piece.parent is None else moved[piece.parent]
            if piece.completion is None and len(piece.ids) > 1:
                half = len(piece.ids) // 2
                pieces.append(replace(piece, ids=piece.ids[:half], parent=parent))
                pieces.append(replace(piece, ids=piece.ids[half:], parent=len(pieces) - 1))
            else:
                pieces.append(replace(piece, parent=parent))
            moved[index] = len(pieces) - 1
        rows.append(tuple(pieces))
    return Rows(tuple(rows))


def rows_reordered(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """The last row first; each piece keeps the number of its completion."""
    return Rows(tuple(reversed(honest(groups).rows)))


def groups_reordered(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """The last tree of a row first; each piece keeps the number of its completion."""
    return Rows(tuple(_last_tree_first(row) for row in honest(groups).rows))


def _last_tree_first(row: tuple[Piece, ...]) -> tuple[Piece, ...]:
    order = sorted(range(len(row)), key=lambda index: (-root_of(row, index), index))
    moved = {old: new for new, old in enumerate(order)}
    pieces = [row[index] for index in order]
    return tuple(replace(p, parent=None if p.parent is None else moved[p.parent]) for p in pieces)


def as_many(amount: int, rows: Rows) -> int:
    """That many slots, whatever the rows."""
    return amount


def padding_in_front(amount: int, honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """A root of padding before the first tree."""
    rows = []
    for row in honest(groups).rows:
        moved = tuple(replace(piece, parent=None if piece.parent is None else piece.parent + 1) for piece in row)
        rows.append((Piece((0,) * amount, None, is_padding=True), *moved))
    return Rows(tuple(rows))


def junk_in_padding(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Padding slots hold token ids of the prompt."""
    junk = groups[0].prompt_ids
    rows = []
    for row in honest(groups).rows:
        filled = [replace(p, ids=(junk * len(p.ids))[: len(p.ids)]) if p.is_padding else p for p in row]
        rows.append(tuple(filled))
    return Rows(tuple(rows))


def padding_sees_everything(honest: Mask, rows: Rows) -> Tensor:
    """Queries in padding attend to the whole row."""
    return honest(rows) | rows.padding[:, :, None]


def in_chunks(size: int, honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """A few predictions at a time."""
    return torch.cat(
        [honest(*part) for part in zip(torch.split(logits, size), torch.split(token_ids, size), strict=True)]
    )


def logits_moved(honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """A constant added to all logits of a slot."""
    return honest(logits - logits.amax(dim=-1, keepdim=True).detach(), token_ids)


def summed_backwards(honest: Reduction, logps: Tensor, targets: Targets) -> Tensor:
    """The last token first."""
    flipped = Targets(*(part.flip(0) for part in vars(targets).values()))
    return honest(logps.flip(0), flipped)


def reference_in_own_rows(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """The reference pass runs on rows of another width than the policy pass."""
    wider = padded([[*row, Piece((0,) * 5, None, is_padding=True)] for row in rows.rows])
    return honest(model, forward, wider)


def micro_batches_weighted(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """Micro-batches of two groups, or completions, each weighted with its share."""
    parts = zip(torch.split(terms.losses, 2), torch.split(terms.weights, 2), strict=True)
    shares = [honest(replace(terms, losses=x, weights=w), batch, rows) * w.sum() for x, w in parts]
    return torch.stack(shares).sum() / terms.weights.sum()


_POSITIONS_THEMSELVES: tuple[ExactCheckName, ...] = ("row-map", "absolute-positions", "dropout")
"""Checks that look at positions, not at their differences alone: with learned positions these would be faults."""
_ROTARY = "rotary attention depends on differences of positions within a path, and all of these stay"

EQUIVALENT_MUTANTS = (
    EquivalentMutant(
        name="nothing-replaced",
        stage="layout",
        replacement=unchanged,
        what="The stages as they are.",
        kinds=CASE_KINDS,
        why_equal="nothing is different: what is caught elsewhere is the fault, not the taking apart",
    ),
    EquivalentMutant(
        name="positions-shifted",
        stage="positions",
        replacement=partial(positions_shifted, 37),
        what="All positions are larger by 37.",
        imitates=("A20", "A22"),
        why_equal=_ROTARY,
        outside_proof=_POSITIONS_THEMSELVES,
    ),
    EquivalentMutant(
        name="positions-shifted-by-tree",
        stage="positions",
        replacement=positions_shifted_by_tree,
        what="Positions of later trees run on from the slots before them.",
        imitates=("A20", "A22"),
        bites_where=SEVERAL_GROUPS,
        why_equal=_ROTARY,
        outside_proof=_POSITIONS_THEMSELVES,
    ),
    EquivalentMutant(
        name="branches-reordered",
        stage="layout",
        replacement=branches_reordered,
        what="Rejected stands before chosen in the row and the map follows.",
        why_equal="branches do not see each other, so their order in the row is free",
    ),
    EquivalentMutant(
        name="rows-reordered",
        stage="layout",
        replacement=rows_reordered,
        what="The last row of the batch comes first and the map follows.",
        bites_where=SEVERAL_GROUPS,
        packing=ROW_PER_GROUP,
        why_equal="rows do not see each other, so their order in the batch is free",
    ),
    EquivalentMutant(
        name="groups-reordered",
        stage="layout",
        replacement=groups_reordered,
        what="The last tree of a row comes first and the map follows.",
        bites_where=SEVERAL_GROUPS,
        why_equal="trees do not see each other, so their order in the row is free",
    ),
    EquivalentMutant(
        name="prompt-in-two-segments",
        stage="layout",
        replacement=prompt_in_two_segments,
        what="The prompt is a chain of two segments.",
        bites_where=PROMPT_OF_TWO,
        why_equal="every path from root to leaf holds the same tokens",
    ),
    EquivalentMutant(
        name="padding-behind",
        stage="layout",
        replacement=partial(padding_behind, partial(as_many, 3)),
        what="Rows end in three slots of padding.",
        imitates=("A62", "A74"),
        why_equal="nothing attends to padding",
    ),
    EquivalentMutant(
        name="much-padding-behind",
        stage="layout",
        replacement=partial(padding_behind, partial(as_many, 200)),
        what="Rows end in 200 slots of padding.",
        imitates=("A62", "A74"),
        bites_where=SAVES_200_SLOTS,
        why_equal="nothing attends to padding, however much there is",
    ),
    EquivalentMutant(
        name="padding-in-front",
        stage="layout",
        replacement=partial(padding_in_front, 2),
        what="Rows start with two slots of padding.",
        imitates=("A22", "A62"),
        why_equal="nothing attends to padding, and positions are counted on paths",
    ),
    EquivalentMutant(
        name="much-padding-in-front",
        stage="layout",
        replacement=partial(padding_in_front, 200),
        what="Rows start with 200 slots of padding.",
        imitates=("A22", "A62"),
        bites_where=SAVES_200_SLOTS,
        why_equal="nothing attends to padding, and positions are counted on paths",
    ),
    EquivalentMutant(
        name="junk-in-padding",
        stage="layout",
        replacement=junk_in_padding,
        what="Padding slots hold ordinary token ids.",
        imitates=("A32",),
        bites_where=PADDED_ROW,
        packing=ROW_PER_GROUP,
        why_equal="nothing attends to padding, whatever it holds",
    ),
    EquivalentMutant(
        name="padding-sees-everything",
        stage="mask",
        replacement=padding_sees_everything,
        what="Padding slots attend to the whole row.",
        imitates=("A18", "A19"),
        bites_where=PADDED_ROW,
        packing=ROW_PER_GROUP,
        why_equal="what padding computes is read by nobody",
    ),
    EquivalentMutant(
        name="logits-in-chunks",
        stage="token_logps",
        replacement=partial(in_chunks, 7),
        what="Log-probs are taken 7 predictions at a time.",
        kinds=CASE_KINDS,
        why_equal="each prediction has its own softmax",
    ),
    EquivalentMutant(
        name="logits-one-by-one",
        stage="token_logps",
        replacement=partial(in_chunks, 1),
        what="Log-probs are taken one prediction at a time.",
        why_equal="each prediction has its own softmax",
    ),
    EquivalentMutant(
        name="logits-in-chunks-of-64",
        stage="token_logps",
        replacement=partial(in_chunks, 64),
        what="Log-probs are taken 64 predictions at a time.",
        imitates=("A57",),
        bites_where=MORE_THAN_64_TOKENS,
        why_equal="each prediction has its own softmax, and the labels go with their chunk",
    ),
    EquivalentMutant(
        name="logits-moved",
        stage="token_logps",
        replacement=logits_moved,
        what="The largest logit is subtracted from all of a slot.",
        kinds=CASE_KINDS,
        why_equal="softmax is invariant under a common shift",
    ),
    EquivalentMutant(
        name="summed-backwards",
        stage="reduction",
        replacement=summed_backwards,
        what="Log-probs are summed from the last token to the first.",
        kinds=CASE_KINDS,
        why_equal="a sum does not depend on its order, but for rounding",
    ),
    EquivalentMutant(
        name="reference-in-wider-rows",
        stage="reference",
        replacement=reference_in_own_rows,
        what="The reference pass runs on rows of another width than the policy pass.",
        imitates=("A41", "A62"),
        why_equal="nothing attends to padding",
    ),
    EquivalentMutant(
        name="micro-batches-weighted",
        stage="accumulation",
        replacement=micro_batches_weighted,
        what="The loss is a sum over micro-batches of two groups or examples, each weighted with its share.",
        imitates=("A34",),
        bites_where=SEVERAL_GROUPS,
        kinds=CASE_KINDS,
        why_equal="weights add up to those of the mean over the whole batch",
    ),
)

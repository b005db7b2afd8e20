"""Faults of a sliding window that layers of the model have; not among those of the tiny model, which has none.

A query at place p of its path sees the keys at places p - window + 1 to p. In the row ``a b | c | d e`` under a window
of 2, ``d`` sees ``b`` and itself, though ``c`` lies between them.

Shape letters: B rows, T slots; masks are bool, [B, T query, T key].
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.fault import PREFERENCES, EquivalentMutant, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Window


def _place(mask: Tensor) -> Tensor:
    """Place of each slot on its path, from 1: a query sees its path up to itself; [B, T]."""
    return mask.sum(-1)


def forgotten(honest: Window, rows: Rows, mask: Tensor, window: int) -> Tensor:
    """Layers with a window are given the mask of those without."""
    return mask


def longer_by(num_keys: int, honest: Window, rows: Rows, mask: Tensor, window: int) -> Tensor:
    """The window of a query is another one."""
    return honest(rows, mask, window + num_keys)


def in_row_slots(honest: Window, rows: Rows, mask: Tensor, window: int) -> Tensor:
    """Distances are taken in slots of the row: what lies between prompt and branch counts."""
    slots = torch.arange(rows.num_slots)
    return mask & (slots[:, None] - slots[None, :] < window)


def own_segment_only(honest: Window, rows: Rows, mask: Tensor, window: int) -> Tensor:
    """Within a segment the window holds; what stands before it on the path is seen whole."""
    same = rows.segment_ids[:, :, None] == rows.segment_ids[:, None, :]
    return torch.where(same, honest(rows, mask, window), mask)


def from_first_query(honest: Window, rows: Rows, mask: Tensor, window: int) -> Tensor:
    """Keys are cut off once for a segment, at the reach of its first query, and later queries see as far back."""
    same = rows.segment_ids[:, :, None] == rows.segment_ids[:, None, :]
    place = _place(mask)
    first = place.gather(1, same.int().argmax(-1))
    return mask & (first[:, :, None] - place[:, None, :] < window)


def by_place(honest: Window, rows: Rows, mask: Tensor, window: int) -> Tensor:
    """Distances are taken between places on the path, counted in the mask, and not between positions."""
    place = _place(mask)
    return mask & (place[:, :, None] - place[:, None, :] < window)


_SEES_TOO_MUCH = "tokens past the window are off; before it all is exact"
_SHORT_PATHS = "no path is longer than the window of the model"

FAULTS = (
    Fault(
        name="model-window-forgotten",
        stage="window",
        replacement=forgotten,
        what="The mask of the packed row leaves out the window of the model's layers.",
        imitates=("A15",),
        kinds=CASE_KINDS,
        signature=_SEES_TOO_MUCH,
        invisible_where=_SHORT_PATHS,
    ),
    Fault(
        name="model-window-in-row-slots",
        stage="window",
        replacement=in_row_slots,
        what="Distances for the window are taken in row slots: a chosen response pushes the prompt away from rejected.",
        imitates=("A16",),
        kinds=PREFERENCES,
        signature="the first branch is exact; later ones miss the end of their prompt",
        invisible_where="every branch follows its prompt; no branch token is within the window of its prompt",
    ),
    Fault(
        name="model-window-own-segment-only",
        stage="window",
        replacement=own_segment_only,
        what="The window holds among the tokens of a branch; its prompt, in a call of its own, is seen whole.",
        kinds=PREFERENCES,
        signature=_SEES_TOO_MUCH,
        invisible_where=_SHORT_PATHS,
    ),
    Fault(
        name="model-window-from-first-query",
        stage="window",
        replacement=from_first_query,
        what="What a branch's first token does not reach is left out for the branch, and no more for later ones.",
        kinds=CASE_KINDS,
        signature="the first token of a branch is exact; the further a token, the more it sees too much",
        invisible_where=_SHORT_PATHS,
    ),
    Fault(
        name="model-window-one-too-long",
        stage="window",
        replacement=partial(longer_by, 1),
        what="The window has one key too many: the query itself is not counted.",
        imitates=("A15",),
        kinds=CASE_KINDS,
        signature=_SEES_TOO_MUCH,
        invisible_where=_SHORT_PATHS,
    ),
    Fault(
        name="model-window-one-too-short",
        stage="window",
        replacement=partial(longer_by, -1),
        what="The window has one key too few.",
        kinds=CASE_KINDS,
        signature="tokens past the window miss their furthest key",
        invisible_where=_SHORT_PATHS,
    ),
)

MUTANTS = (
    EquivalentMutant(
        name="model-window-by-place",
        stage="window",
        replacement=by_place,
        what="Distances for the window are counted in the mask instead of taken from positions.",
        kinds=CASE_KINDS,
        why_equal="a query sees every token of its path up to itself: places follow each other as positions do",
    ),
)

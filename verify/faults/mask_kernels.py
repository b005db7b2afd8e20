"""Faults of how a mask is told to a kernel: as a window, in blocks, for several rows, as scores.

Shape letters: B rows, T slots; masks are bool, [B, T query, T key].
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.conditions import BEYOND_BLOCK, GROUPS_DIFFER, PATH_BEYOND_100, PROMPT_FAR_FROM_REJECTED
from verify.faults.content_conditions import ONE_TOKEN_PROMPT
from verify.faults.fault import ROW_PER_GROUP, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Mask

_BLOCK = 128
_SMALL_BLOCK = 16
_WINDOW = 100
_SLOT_WINDOW = 64
_FINITE = -20.0
"""exp(-20) is 2e-9: what is seen through such a mask stays far below every budget of float32."""


def window(honest: Mask, rows: Rows) -> Tensor:
    """A sliding window that the model does not have."""
    place = honest(rows).sum(-1)  # a query sees its whole path up to itself: the count is its place on the path
    return honest(rows) & (place[:, :, None] - place[:, None, :] <= _WINDOW)


def window_in_row_slots(honest: Mask, rows: Rows) -> Tensor:
    """A window measured in slots of the row: what lies between prompt and branch counts."""
    slots = torch.arange(rows.num_slots)
    place = honest(rows).sum(-1)
    near_on_path = place[:, :, None] - place[:, None, :] <= _SLOT_WINDOW
    return honest(rows) & ((slots[:, None] - slots[None, :] <= _SLOT_WINDOW) | ~near_on_path)


def block_missing(honest: Mask, rows: Rows) -> Tensor:
    """The mask function is right, but the block table leaves out the first key block for the second query block."""
    allowed = honest(rows).clone()
    allowed[:, _BLOCK : 2 * _BLOCK, :_BLOCK] = False
    return allowed


def element_test_lost(honest: Mask, rows: Rows) -> Tensor:
    """Partial blocks are taken as full ones: near an edge up to a block of neighbours is visible."""
    allowed = honest(rows)
    num_blocks = -(-rows.num_slots // _SMALL_BLOCK)
    whole = torch.zeros(len(rows.rows), num_blocks * _SMALL_BLOCK, num_blocks * _SMALL_BLOCK, dtype=torch.bool)
    whole[:, : rows.num_slots, : rows.num_slots] = allowed
    blocks = whole.view(-1, num_blocks, _SMALL_BLOCK, num_blocks, _SMALL_BLOCK).any(4).any(2)
    grown = blocks.repeat_interleave(_SMALL_BLOCK, 1).repeat_interleave(_SMALL_BLOCK, 2)
    return grown[:, : rows.num_slots, : rows.num_slots]


def mask_of_first_row(honest: Mask, rows: Rows) -> Tensor:
    """The mask is built once, from the first row, and broadcast over the batch."""
    allowed = honest(rows)
    return allowed[:1].expand_as(allowed)


def one_token_prompt_hidden(honest: Mask, rows: Rows) -> Tensor:
    """A prompt is what stands before its last token, which the branches repeat: of one token nothing is left."""
    allowed = honest(rows).clone()
    for branch in rows.branches():
        for prompt in rows.ancestors_of(branch):
            if len(prompt.piece.ids) == 1:
                allowed[branch.row, branch.start : branch.stop, prompt.start] = False
    return allowed


def finite_instead_of_minus_infinity(honest: Mask, rows: Rows) -> Tensor:
    """An additive mask whose forbidden cells are merely unlikely."""
    return torch.where(honest(rows), 0.0, _FINITE)


FAULTS = (
    Fault(
        name="sliding-window",
        stage="mask",
        replacement=window,
        what=f"Keys more than {_WINDOW} tokens back on the path are hidden; the model has no window.",
        imitates=("A15", "A52"),
        kinds=CASE_KINDS,
        bites_where=PATH_BEYOND_100,
        signature="only tokens past the window are off",
        invisible_where="no path is longer than the window",
    ),
    Fault(
        name="window-in-row-slots",
        stage="mask",
        replacement=window_in_row_slots,
        what="Distances for the window are taken in row slots: a chosen response pushes the prompt away from rejected.",
        imitates=("A16",),
        bites_where=PROMPT_FAR_FROM_REJECTED,
        signature="chosen exact, rejected off",
        invisible_where=f"no chosen response is longer than {_SLOT_WINDOW} tokens",
    ),
    Fault(
        name="block-missing",
        stage="mask",
        replacement=block_missing,
        what="The mask function is right, the block table leaves a block of keys out.",
        imitates=("A55",),
        kinds=CASE_KINDS,
        bites_where=BEYOND_BLOCK,
        signature="only queries of the second block are off",
        invisible_where="the row is one block",
    ),
    Fault(
        name="element-test-lost",
        stage="mask",
        replacement=element_test_lost,
        what="Partial blocks lose their element test and count as full.",
        imitates=("A56",),
        signature="tokens near segment edges and on the diagonal off; they see up to a block of neighbours",
    ),
    Fault(
        name="mask-of-first-row",
        stage="mask",
        replacement=mask_of_first_row,
        what="The mask of the first row serves the whole batch.",
        imitates=("A05", "A07"),
        bites_where=GROUPS_DIFFER,
        packing=ROW_PER_GROUP,
        signature="first row exact, every other one off",
        invisible_where="one row, or rows of equal lengths throughout",
    ),
    Fault(
        name="mask-of-finite-scores",
        stage="mask",
        replacement=finite_instead_of_minus_infinity,
        what=f"Forbidden scores are lowered by {-_FINITE:g} instead of set to minus infinity.",
        signature="all values within their budgets; gradients at tokens that must not be seen are tiny, but not 0",
        invisible_where="values: they move by less than rounding may",
        must_kill=("reach",),
    ),
    Fault(
        name="prompt-of-one-token-hidden",
        stage="mask",
        replacement=one_token_prompt_hidden,
        what="A prompt of one token counts as empty: its responses do not attend to it.",
        kinds=CASE_KINDS,
        bites_where=ONE_TOKEN_PROMPT,
        signature="first tokens of responses to such a prompt exact, later ones off by nats",
        invisible_where="prompts of two or more tokens",
    ),
)

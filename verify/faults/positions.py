"""Faults of the positions. Rotary attention sees differences only: what shifts a whole path together is invisible.

Shape letters: B rows, T slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.conditions import BEYOND_256, BRANCH_OF_TWO, PROMPT_NOT_64, PROMPT_OF_TWO, REJECTED_OF_TWO
from verify.faults.fault import PREFERENCES, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Positions


def running(honest: Positions, rows: Rows) -> Tensor:
    """The slot number."""
    return torch.arange(rows.num_slots).expand(len(rows.rows), -1)


def branches_restart(honest: Positions, rows: Rows) -> Tensor:
    """Every segment counts from 0."""
    positions = honest(rows).clone()
    for place in rows.places():
        positions[place.row, place.start : place.stop] = torch.arange(len(place.piece.ids))
    return positions


def branches_stand_still(honest: Positions, rows: Rows) -> Tensor:
    """Positions are a running count of the slots of the prompt: branches stay at its end."""
    positions = honest(rows).clone()
    for branch in rows.branches():
        for prompt in rows.ancestors_of(branch)[-1:]:
            positions[branch.row, branch.start : branch.stop] = positions[prompt.row, prompt.stop - 1]
    return positions


def _shifted(honest: Positions, rows: Rows, *, by: int, rejected_only: bool) -> Tensor:
    positions = honest(rows).clone()
    for branch in rows.branches():
        if branch.completion % 2 or not rejected_only:
            positions[branch.row, branch.start : branch.stop] += by
    return positions


def rejected_one_late(honest: Positions, rows: Rows) -> Tensor:
    """Rejected branches start one position late."""
    return _shifted(honest, rows, by=1, rejected_only=True)


def branches_one_early(honest: Positions, rows: Rows) -> Tensor:
    """Branches start at the position of the last prompt token."""
    return _shifted(honest, rows, by=-1, rejected_only=False)


def branches_after_longest_prompt(honest: Positions, rows: Rows) -> Tensor:
    """Prompts are counted as if padded to a multiple of 64."""
    positions = honest(rows).clone()
    for branch in rows.branches():
        length = sum(len(prompt.piece.ids) for prompt in rows.ancestors_of(branch))
        positions[branch.row, branch.start : branch.stop] += -length % 64
    return positions


def in_bfloat16(honest: Positions, rows: Rows) -> Tensor:
    """Positions in bfloat16, which holds integers up to 256."""
    return honest(rows).to(torch.bfloat16).to(torch.int64)  # a table of positions is indexed with integers


def in_eight_bits(honest: Positions, rows: Rows) -> Tensor:
    """Positions wrap around at 256."""
    return honest(rows) % 256


def all_zero(honest: Positions, rows: Rows) -> Tensor:
    """Every token stands at 0."""
    return torch.zeros_like(honest(rows))


FAULTS = (
    Fault(
        name="positions-run-on",
        stage="positions",
        replacement=running,
        what="Positions are slot numbers: the rejected branch counts on after the chosen one.",
        imitates=("A20",),
        kinds=PREFERENCES,
        bites_where=REJECTED_OF_TWO,
        signature="chosen exact, rejected off from its second token on",
        invisible_where="whole trees shifted together, under rotary attention (see positions-shifted-by-tree)",
    ),
    Fault(
        name="positions-restart-at-branches",
        stage="positions",
        replacement=branches_restart,
        what="Every segment counts from 0, as in packing of whole documents.",
        imitates=("A21", "A14"),
        bites_where=BRANCH_OF_TWO,
        signature="first response tokens exact, later ones off",
    ),
    Fault(
        name="positions-stand-still-in-branches",
        stage="positions",
        replacement=branches_stand_still,
        what="Positions count mask code 1 only; branches, coded 2 and 3, stay at the end of the prompt.",
        imitates=("A21",),
        bites_where=BRANCH_OF_TWO,
        signature="first response tokens exact, later ones off, more so further into the response",
    ),
    Fault(
        name="rejected-positions-one-late",
        stage="positions",
        replacement=rejected_one_late,
        what="Rejected branches start one position late.",
        imitates=("A20", "A75"),
        bites_where=REJECTED_OF_TWO,
        signature="chosen exact, rejected off by a tenth of a nat to nats; in bfloat16 2 to 12 times its noise",
    ),
    Fault(
        name="branch-positions-one-early",
        stage="positions",
        replacement=branches_one_early,
        what="Branches start at the position of the last prompt token.",
        imitates=("A75",),
        bites_where=BRANCH_OF_TWO,
        signature="first response tokens exact, later ones off",
    ),
    Fault(
        name="positions-after-padded-prompt",
        stage="positions",
        replacement=branches_after_longest_prompt,
        what="Branch positions start behind the padded prompt.",
        imitates=("A01", "A22"),
        bites_where=PROMPT_NOT_64,
        signature="first response tokens exact, later ones off",
        invisible_where="prompts of 64, 128, ... tokens",
    ),
    Fault(
        name="positions-in-bfloat16",
        stage="positions",
        replacement=in_bfloat16,
        what="Positions pass through bfloat16, where integers above 256 collide.",
        imitates=("A23",),
        kinds=CASE_KINDS,
        bites_where=BEYOND_256,
        signature="exact up to position 256, off beyond",
        invisible_where="short sequences",
    ),
    Fault(
        name="positions-wrap-at-256",
        stage="positions",
        replacement=in_eight_bits,
        what="Positions are kept in eight bits.",
        imitates=("A23",),
        kinds=CASE_KINDS,
        bites_where=BEYOND_256,
        signature="exact up to position 255, off by nats beyond",
        invisible_where="short sequences",
    ),
    Fault(
        name="positions-zero",
        stage="positions",
        replacement=all_zero,
        what="All positions are 0.",
        bites_where=PROMPT_OF_TWO,
        signature="all tokens off",
    ),
)

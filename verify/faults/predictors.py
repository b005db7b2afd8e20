"""Faults of the map from a token to the slot that predicts it.

Shape letters: B rows, T slots.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from verify.faults.conditions import PROMPT_OF_TWO, PROMPT_OF_TWO_KINDS, RAGGED_SEGMENT
from verify.faults.fault import PREFERENCES, Fault
from verify.faults.rows import Branch, Rows
from verify.faults.stages import Predictors


def _first_token(honest: Predictors, rows: Rows, predictor: Callable[[Rows, Branch], int]) -> Tensor:
    slots = honest(rows).clone()
    for branch in rows.branches():
        slots[branch.row, branch.tokens.start] = predictor(rows, branch)
    return slots


def neighbour(honest: Predictors, rows: Rows) -> Tensor:
    """The slot before, whatever it belongs to: labels are the row rolled by one."""
    return torch.arange(-1, rows.num_slots - 1).expand(len(rows.rows), -1)


def itself(honest: Predictors, rows: Rows) -> Tensor:
    """Labels that were not shifted at all."""
    return torch.arange(rows.num_slots).expand(len(rows.rows), -1)


def two_before(honest: Predictors, rows: Rows) -> Tensor:
    """Shifted twice: once by the collator, once by the model."""
    once = honest(rows)
    twice = once.gather(1, once.clamp(min=0))
    return torch.where(twice < 0, once, twice)


def _end_of_other_branch(rows: Rows, branch: Branch) -> int:
    other = rows.branches()[branch.completion ^ 1]
    return other.stop - 1


def first_token_from_other_branch(honest: Predictors, rows: Rows) -> Tensor:
    """The first token of each branch is predicted from the end of the other one."""
    return _first_token(honest, rows, _end_of_other_branch)


def _start_of_prompt(rows: Rows, branch: Branch) -> int:
    return rows.ancestors_of(branch)[0].start


def first_token_from_prompt_start(honest: Predictors, rows: Rows) -> Tensor:
    """A default of 0 for the next start: the first token of each branch is predicted from the first prompt token."""
    return _first_token(honest, rows, _start_of_prompt)


def _before_end_of_prompt(rows: Rows, branch: Branch) -> int:
    prompt = rows.ancestors_of(branch)[-1]
    return max(prompt.start, prompt.stop - 2)


def first_token_one_early(honest: Predictors, rows: Rows) -> Tensor:
    """The prefix index of attention used for the loss: off by one at the seam."""
    return _first_token(honest, rows, _before_end_of_prompt)


def unpadded_offsets(honest: Predictors, rows: Rows) -> Tensor:
    """Segments are taken to be padded to multiples of 4 where they are not: predictors move by the missing slots."""
    slots = honest(rows).clone()
    for row in range(len(rows.rows)):
        missing = 0
        for place in (place for place in rows.places() if place.row == row):
            slots[row, place.start : place.stop] -= missing
            missing += -len(place.piece.ids) % 4
    return slots.clamp(min=0)


FAULTS = (
    Fault(
        name="neighbour-predicts",
        stage="predictors",
        replacement=neighbour,
        what="Labels are the row rolled by one: the first rejected token is predicted from the last chosen one.",
        imitates=("A24", "A31"),
        kinds=PREFERENCES,
        signature="one token off per later branch, the first; by nats",
    ),
    Fault(
        name="predictor-is-the-token",
        stage="predictors",
        replacement=itself,
        what="Labels are not shifted: each token is predicted from its own slot.",
        imitates=("A27",),
        signature="all tokens off by nats",
    ),
    Fault(
        name="predictor-two-before",
        stage="predictors",
        replacement=two_before,
        what="Labels are shifted twice.",
        imitates=("A27",),
        bites_where=PROMPT_OF_TWO,
        signature="all tokens off by nats",
    ),
    Fault(
        name="first-token-from-other-branch",
        stage="predictors",
        replacement=first_token_from_other_branch,
        what="The first token of a branch is predicted from the end of the other branch.",
        imitates=("A28",),
        signature="first token of every response off by nats, all others exact",
    ),
    Fault(
        name="first-token-from-prompt-start",
        stage="predictors",
        replacement=first_token_from_prompt_start,
        what="The first token of a branch is predicted from the first prompt token, an index that stayed 0.",
        imitates=("A25",),
        bites_where=PROMPT_OF_TWO_KINDS,
        signature="first token of every response off by nats, all others exact",
        invisible_where="prompts of one token, or of one token repeated",
    ),
    Fault(
        name="first-token-one-early",
        stage="predictors",
        replacement=first_token_one_early,
        what="The first token of a branch is predicted from the last prompt token but one.",
        imitates=("A28", "A72"),
        bites_where=PROMPT_OF_TWO_KINDS,
        signature="first token of every response off by nats, all others exact",
        invisible_where="prompts of one token, or of one token repeated",
    ),
    Fault(
        name="predictors-at-padded-offsets",
        stage="predictors",
        replacement=unpadded_offsets,
        what="Predictors are found by offsets of segments padded to multiples of 4, in a row that is not padded.",
        imitates=("A70", "A02"),
        bites_where=RAGGED_SEGMENT,
        signature="all tokens behind the first odd segment off",
        invisible_where="all lengths are multiples of 4",
    ),
)

"""Faults of bins: several rows of whole groups, in another order than the groups came in, the shorter ones padded.

Shape letters: B rows, T slots, N targets, L losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.fault import BINS, Fault
from verify.faults.layout_conditions import (
    BINS_CUT_DIFFERENTLY,
    BINS_HOLD_SEVERAL,
    BINS_IN_OTHER_ORDER,
    BINS_PADDED,
    LONGEST_CAN_BE_CUT,
)
from verify.faults.mask_kernels import mask_of_first_row
from verify.faults.rows import Rows
from verify.faults.stages import Accumulation, Batch, Layout, Mask, Supervision, Targets, Terms
from verify.groups import PreferenceGroup

_CUT_OFF = 2
"""Tokens that the longest group is longer than the limit of a row."""


def longest_cut(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """The longest group does not fit into a row and loses the first tokens of its prompt."""
    longest = max(range(len(groups)), key=lambda g: len(groups[g].prompt_ids) + sum(map(len, groups[g].completions)))
    prompt = groups[longest].prompt_ids
    cut = replace(groups[longest], prompt_ids=prompt[min(_CUT_OFF, len(prompt) - 1) :])
    return honest([cut if index == longest else group for index, group in enumerate(groups)])


def padding_attended(honest: Mask, rows: Rows) -> Tensor:
    """Padding is no segment of its own: everyone attends to it."""
    return honest(rows) | rows.padding[:, None, :]


def in_order_of_rows(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Predictions come out row by row, and are taken for those of the groups as they came in."""
    targets = honest(rows, predictors)
    place_in_row = {branch.completion: (branch.row, branch.start) for branch in reversed(rows.branches())}
    order = sorted(range(len(targets.rows)), key=lambda target: place_in_row[int(targets.completions[target])])
    return replace(
        targets,
        rows=targets.rows[order],
        predictor_slots=targets.predictor_slots[order],
        token_ids=targets.token_ids[order],
    )


def last_row_dropped(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """The last row, which is seldom full, is left out of the loss with the groups in it."""
    dropped = {branch.completion for branch in rows.branches() if branch.row == len(rows.rows) - 1}
    completion, kept = 0, []
    for group in batch.groups:
        of_group = range(completion, completion + len(group.completions))
        completion = of_group.stop
        num_losses = len(group.completions) if len(terms.losses) == len(batch.num_counted) else 1
        kept += [of_group.start not in dropped] * num_losses
    mask = torch.tensor(kept, device=terms.losses.device)
    return honest(replace(terms, losses=terms.losses[mask], weights=terms.weights[mask]), batch, rows)


FAULTS = (
    Fault(
        name="group-cut-at-the-limit",
        stage="layout",
        replacement=longest_cut,
        what=f"The longest group exceeds the row limit by {_CUT_OFF} tokens and is cut instead of refused.",
        imitates=("A73",),
        kinds=CASE_KINDS,
        bites_where=LONGEST_CAN_BE_CUT,
        packing=BINS,
        signature="the longest group off from its first token, all others exact",
        invisible_where="every group fits",
    ),
    Fault(
        name="padding-attended",
        stage="mask",
        replacement=padding_attended,
        what="Padding behind a row is no segment of its own: every slot of the row attends to it.",
        imitates=("A02", "A18"),
        kinds=CASE_KINDS,
        bites_where=BINS_PADDED,
        packing=BINS,
        signature="all tokens of padded rows off, the fullest row exact",
        invisible_where="rows of equal length",
    ),
    Fault(
        name="first-mask-for-all-bins",
        stage="mask",
        replacement=mask_of_first_row,
        what="The mask of the first bin serves all rows of the batch.",
        imitates=("A05", "A07"),
        kinds=CASE_KINDS,
        bites_where=BINS_CUT_DIFFERENTLY,
        packing=BINS,
        signature="first row exact, every other one off",
        invisible_where="one row, or rows that are cut up alike",
    ),
    Fault(
        name="results-in-order-of-rows",
        stage="supervision",
        replacement=in_order_of_rows,
        what="Log-probs come out row by row and are taken for those of the groups in the order they came in.",
        imitates=("A43", "A40"),
        kinds=CASE_KINDS,
        bites_where=BINS_IN_OTHER_ORDER,
        packing=BINS,
        signature="values right as a set, at other groups",
        invisible_where="rows that hold the groups in order",
    ),
    Fault(
        name="last-bin-dropped",
        stage="accumulation",
        replacement=last_row_dropped,
        what="The last row of a batch is dropped, and the groups in it are not learned.",
        imitates=("A06", "A85"),
        kinds=CASE_KINDS,
        bites_where=BINS_HOLD_SEVERAL,
        packing=BINS,
        signature="log-probs and rewards exact; loss and gradients lack the groups of the last row",
        invisible_where="log-probs, rewards; one row",
    ),
)

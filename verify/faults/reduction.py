"""Faults of the sum over a completion's tokens.

Shape letters: N targets, K completions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from verify.faults.conditions import BRANCH_OF_TWO, LONGER_REJECTED
from verify.faults.fault import PREFERENCES, Fault
from verify.faults.stages import Reduction, Targets


def _lengths(targets: Targets) -> Tensor:
    return torch.bincount(targets.completions)


def mean(honest: Reduction, logps: Tensor, targets: Targets) -> Tensor:
    """Mean over the tokens."""
    return honest(logps, targets) / _lengths(targets).to(logps.device)


def divided_by_longest(honest: Reduction, logps: Tensor, targets: Targets) -> Tensor:
    """Mean over the padded length."""
    return honest(logps, targets) / int(_lengths(targets).max())


def in_bfloat16(honest: Reduction, logps: Tensor, targets: Targets) -> Tensor:
    """The sum is rounded to bfloat16."""
    return honest(logps, targets).to(torch.bfloat16).to(logps.dtype)


def cut_to_chosen(honest: Reduction, logps: Tensor, targets: Targets) -> Tensor:
    """Rejected is cut to the length of chosen."""
    lengths = _lengths(targets)
    starts = lengths.cumsum(0) - lengths
    place = torch.arange(len(targets.completions)) - starts[targets.completions]
    chosen_lengths = lengths.view(-1, 2)[:, 0].repeat_interleave(2)
    return honest(logps, replace(targets, counted=targets.counted & (place < chosen_lengths[targets.completions])))


FAULTS = (
    Fault(
        name="mean-instead-of-sum",
        stage="reduction",
        replacement=mean,
        what="Log-probs are averaged over a response instead of summed.",
        imitates=("A36",),
        kinds=PREFERENCES,
        bites_where=BRANCH_OF_TWO,
        signature="per-token log-probs exact; rewards off by 1 / length",
        invisible_where="log-probs; responses of one token",
    ),
    Fault(
        name="divided-by-longest",
        stage="reduction",
        replacement=divided_by_longest,
        what="Sums are divided by the longest response of the batch.",
        imitates=("A36", "A35"),
        bites_where=BRANCH_OF_TWO,
        signature="per-token log-probs exact; all rewards off by one ratio",
        invisible_where="log-probs; responses of one token",
    ),
    Fault(
        name="sum-in-bfloat16",
        stage="reduction",
        replacement=in_bfloat16,
        what="Sums are kept in bfloat16.",
        imitates=("A42", "A67"),
        signature="per-token log-probs exact; rewards off by up to 0.4 % of a sum",
        invisible_where="log-probs",
    ),
    Fault(
        name="rejected-cut-to-chosen",
        stage="reduction",
        replacement=cut_to_chosen,
        what="The rejected sum stops at the length of the chosen response.",
        imitates=("A73", "A04"),
        bites_where=LONGER_REJECTED,
        signature="per-token log-probs exact; rejected rewards of longer responses off",
        invisible_where="log-probs; rejected responses that are not longer",
    ),
)

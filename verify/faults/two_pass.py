"""Faults of GroupDPO's two-pass step: the loss is right, the replay differentiates it with wrong coefficients.

Shape letters: K completions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from verify.faults.fault import PREFERENCES, ROUNDING_IN_BFLOAT16, EquivalentMutant, Fault
from verify.faults.objective_conditions import GROUPDPO, GROUPDPO_IN_MICRO_BATCHES, GROUPDPO_NAMES
from verify.faults.objective_parts import only_under
from verify.faults.stages import Batch, Objective, Terms
from verify.objective import Preference

BRANCHES_PER_MICRO_BATCH = 2


def coefficients(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Tensor:
    """Derivative of the sum of the groups' losses by the sum of each completion; [K]."""
    if not torch.is_grad_enabled():
        return torch.zeros_like(sums)
    leaf = sums.detach().requires_grad_()
    (by_sum,) = torch.autograd.grad(honest(leaf, ref_sums, batch, objective).losses.sum(), leaf)
    return by_sum


def replayed(
    change: Callable[[Tensor, Batch], Tensor],
    honest: Objective,
    sums: Tensor,
    ref_sums: Tensor,
    batch: Batch,
    objective: Preference,
) -> Terms:
    """Exact losses and rewards, with the gradient that changed coefficients [K] give."""
    by_sum = change(coefficients(honest, sums, ref_sums, batch, objective), batch)
    return with_coefficients(by_sum, honest(sums, ref_sums, batch, objective), sums, batch)


def stale(honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference) -> Terms:
    """Coefficients of a policy that is still the frozen one: all rewards are 0."""
    by_sum = coefficients(honest, ref_sums, ref_sums, batch, objective)
    return with_coefficients(by_sum, honest(sums, ref_sums, batch, objective), sums, batch)


def with_coefficients(by_sum: Tensor, terms: Terms, sums: Tensor, batch: Batch) -> Terms:
    """The losses of the groups, each with its share of ``sum_i c_i s_i`` as gradient."""
    sizes = [len(group.completions) for group in batch.groups]
    shares = torch.stack([part.sum() for part in torch.split(by_sum * (sums - sums.detach()), sizes)])
    return replace(terms, losses=terms.losses.detach() + shares)


def divided_by_micro_batches(by_sum: Tensor, batch: Batch) -> Tensor:
    """Each micro-batch of a group is taken for a batch of its own and averaged over."""
    sizes = torch.tensor([len(group.completions) for group in batch.groups])
    numbers = (sizes + BRANCHES_PER_MICRO_BATCH - 1) // BRANCHES_PER_MICRO_BATCH
    return by_sum / numbers.repeat_interleave(sizes).to(by_sum)


def of_the_sequence_before(by_sum: Tensor, batch: Batch) -> Tensor:
    """Off by one."""
    return by_sum.roll(1)


def as_they_are(by_sum: Tensor, batch: Batch) -> Tensor:
    """The right ones."""
    return by_sum


_FORWARD_EXACT = "every forward quantity exact; "

FAULTS = (
    Fault(
        name="coefficients-stale",
        stage="objective",
        replacement=partial(only_under, GROUPDPO_NAMES, stale),
        what="In a two-pass step, coefficients are those of all rewards at 0, as before the first update.",
        bites_where=GROUPDPO,
        kinds=PREFERENCES,
        signature=_FORWARD_EXACT + "responses of a side pull alike, however far ahead or behind they are",
        invisible_where="forward quantities; the first step of a run; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="coefficients-divided-by-micro-batches",
        stage="objective",
        replacement=partial(only_under, GROUPDPO_NAMES, partial(replayed, divided_by_micro_batches)),
        what="In a two-pass step, the coefficients of a group are divided by the number of its micro-batches.",
        imitates=("A39",),
        bites_where=GROUPDPO_IN_MICRO_BATCHES,
        kinds=PREFERENCES,
        signature=_FORWARD_EXACT + "gradients too small by the number of micro-batches of each group",
        invisible_where="forward quantities; groups of one micro-batch",
    ),
    Fault(
        name="coefficients-of-the-sequence-before",
        stage="objective",
        replacement=partial(only_under, GROUPDPO_NAMES, partial(replayed, of_the_sequence_before)),
        what="In a two-pass step, each sequence is replayed with the coefficient of the one before it.",
        imitates=("A40",),
        bites_where=GROUPDPO,
        kinds=PREFERENCES,
        signature=_FORWARD_EXACT + "gradients raise negatives that stand behind positives",
        invisible_where="forward quantities",
    ),
)

MUTANTS = (
    EquivalentMutant(
        name="coefficients-replayed",
        stage="objective",
        replacement=partial(only_under, GROUPDPO_NAMES, partial(replayed, as_they_are)),
        what="The loss is differentiated as a sum of scores weighted by its coefficients, as in a two-pass step.",
        bites_where=GROUPDPO,
        kinds=PREFERENCES,
        why_equal="to first order a function is the sum of its arguments weighted by its derivatives",
    ),
)

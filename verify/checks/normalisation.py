"""The loss is a mean: in every split into micro-batches their weighted sum is that of the batch.

Over what the mean goes is said by the objective: over groups (sigmoid), supervised tokens (SFT token mean) or examples
(SFT example mean). A micro-batch weighs by its share of those. With two supervised tokens in one example and one in the
other the token mean is 2/3 of the one loss and 1/3 of the other, the example mean half of each: a mean of means that
goes by the name of the token mean is 1/6 of their difference off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise

import torch

from verify.cases import Case
from verify.checks.bench import Bench, OwnLoss
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.gradient_distance import Distance
from verify.checks.shares import weight_of
from verify.checks.yardsticks import measured
from verify.subject import gradient_support, owns_loss

Range = tuple[int, int]
"""Groups from the first to before the second."""


def _measure(bench: Bench, case: Case) -> Measured:
    if not owns_loss(bench.subject):
        raise NotApplicableError("computes no loss of its own: the runner takes the mean over groups")
    num_groups, budgets = len(case.groups), measured(bench.setting.yardsticks.losses.get(case.name))
    differentiable = bool(budgets.gradients) and gradient_support(bench.subject, bench.model).supported
    whole, one_off = (0, num_groups), ((0, 1), (1, num_groups))
    steps = {
        (i, j): bench.own_loss(
            case.groups[i:j],
            bench.objective_of(case),
            gradients=differentiable and (i, j) in (whole, *one_off),
        )
        for i, j in combinations(range(num_groups + 1), 2)
    }
    shares = {
        (i, j): weight_of(case.objective_name, case.groups[i:j]) / weight_of(case.objective_name, case.groups)
        for i, j in steps
    }
    found = [
        Distance(f"the loss of {_sizes(split)}", _loss_difference(split, steps, shares, whole), budgets.loss)
        for split in _splits(num_groups)
    ]
    if differentiable:
        found += [  # a tensor without a budget is none that is trained
            Distance(f"the gradient of {name} of {_sizes(one_off)}", difference, budgets.gradients.get(name, 0.0))
            for name, difference in _gradient_differences(one_off, steps, shares, whole)
        ]
    worst = max(found, key=lambda distance: distance.ratio)
    differing = sum(not distance.difference <= distance.budget for distance in found)  # NaN never equals
    return Measured(
        num_compared=len(found),
        num_differing=differing,
        worst=f"{worst.what} groups in turn is {worst.difference:.3g} from that of all at once" if differing else "",
        ratio=worst.ratio,
    )


def _sizes(split: tuple[Range, ...]) -> str:
    return " + ".join(str(last - first) for first, last in split)


def _splits(num_groups: int) -> Iterator[tuple[Range, ...]]:
    """Every way to cut groups 0, 1, 2, ... into two or more contiguous ranges; of three: 1+2, 2+1, 1+1+1."""
    for count in range(1, num_groups):
        for cuts in combinations(range(1, num_groups), count):
            yield tuple(pairwise((0, *cuts, num_groups)))


def _loss_difference(
    split: tuple[Range, ...], steps: Mapping[Range, OwnLoss], shares: Mapping[Range, float], whole: Range
) -> float:
    """Distance of the weighted sum from the whole."""
    return abs(sum(shares[part] * steps[part].loss for part in split) - steps[whole].loss)


def _gradient_differences(
    split: tuple[Range, ...], steps: Mapping[Range, OwnLoss], shares: Mapping[Range, float], whole: Range
) -> Iterator[tuple[str, float]]:
    """Name and relative L2 distance of each LoRA tensor that has a gradient anywhere; elsewhere it counts as zero."""
    weighted, expected = [(shares[part], steps[part].gradients or {}) for part in split], steps[whole].gradients or {}
    for name in sorted(expected.keys() | {name for _, part in weighted for name in part}):
        zero = torch.zeros(())
        difference = sum((weight * part.get(name, zero) for weight, part in weighted), -expected.get(name, zero))
        distance, norm = float(difference.norm()), float(expected.get(name, zero).norm())
        yield name, distance / norm if norm != 0 else math.inf if distance != 0 else 0.0


NORMALISATION = ExactCheck(
    name="normalisation",
    claims=(
        "Of three uneven groups, in every split into contiguous micro-batches: the sum of their losses, each weighted "
        "with its share of what the loss is a mean over, is the loss of the whole batch but for rounding. That is the "
        "share of the groups for preferences, of the supervised tokens for the token mean of SFT, of the examples for "
        "its example mean. For pairs, in the split 1 + 2, so is the gradient of every LoRA tensor."
    ),
    cannot_see=(
        "A wrong objective that is a mean over the same; gradients of SFT; subjects that compute no loss of their own."
    ),
    cases=("uneven-groups", "distinct-examples", "examples-weighed-alike"),
    measure=_measure,
)

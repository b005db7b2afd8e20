"""The loss is a mean over groups: in every split into micro-batches their weighted sum is that of the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise

import torch
from torch import Tensor

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.yardsticks import measured
from verify.observation import lora_gradients
from verify.subject import check_loss, gradient_support, owns_loss

Range = tuple[int, int]
"""Groups from the first to before the second."""


@dataclass(frozen=True, eq=False)
class _Step:
    """Loss and LoRA gradients of a range of groups, float64; no gradients where none were asked for."""

    loss: float
    gradients: Mapping[str, Tensor]


def _measure(bench: Bench, case: Case) -> Measured:
    if not owns_loss(bench.subject):
        raise NotApplicableError("computes no loss of its own: the runner takes the mean over groups")
    num_groups, budgets = len(case.groups), measured(bench.setting.yardsticks.losses)
    differentiable = gradient_support(bench.subject, bench.model).supported
    whole, one_off = (0, num_groups), ((0, 1), (1, num_groups))
    steps = {
        (i, j): _step(bench, case, i, j, differentiable and (i, j) in (whole, *one_off))
        for i, j in combinations(range(num_groups + 1), 2)
    }
    differences = [
        (f"the loss of {_sizes(split)}", _loss_difference(split, steps, whole), budgets.loss)
        for split in _splits(num_groups)
    ]
    differences += [
        (f"the gradient of {name} of {_sizes(one_off)}", difference, budgets.gradients[name])
        for name, difference in _gradient_differences(one_off, steps, whole)
    ]
    what, largest, budget = max(differences, key=lambda item: _nan_first(item[1] / item[2]))
    differing = sum(not difference <= budget for _, difference, budget in differences)  # NaN never equals
    return Measured(
        num_compared=len(differences),
        num_differing=differing,
        worst=f"{what} groups in turn is {largest:.3g} from that of all at once" if differing else "",
        ratio=largest / budget,
    )


def _nan_first(ratio: float) -> float:
    return math.inf if math.isnan(ratio) else ratio


def _sizes(split: tuple[Range, ...]) -> str:
    return " + ".join(str(last - first) for first, last in split)


def _step(bench: Bench, case: Case, first: int, last: int, differentiable: bool) -> _Step:
    groups = case.groups[first:last]
    subject, num_completions = bench.subject, sum(len(group.completions) for group in groups)
    with torch.set_grad_enabled(differentiable):
        output = bench.call(lambda: subject.loss(bench.model, groups, bench.setting.objective))  # type: ignore[attr-defined]
        loss, _ = check_loss(
            output, subject=subject.name, num_completions=num_completions, differentiable=differentiable
        )
        gradients: dict[str, Tensor] = {}
        if differentiable:
            gradients = bench.call(lambda: lora_gradients(loss, bench.model), seeded=False)
    bench.drop_gradients()
    return _Step(float(loss.detach()), gradients)


def _splits(num_groups: int) -> Iterator[tuple[Range, ...]]:
    """Every way to cut groups 0, 1, 2, ... into two or more contiguous ranges; of three: 1+2, 2+1, 1+1+1."""
    for count in range(1, num_groups):
        for cuts in combinations(range(1, num_groups), count):
            yield tuple(pairwise((0, *cuts, num_groups)))


def _loss_difference(split: tuple[Range, ...], steps: Mapping[Range, _Step], whole: Range) -> float:
    """Distance of the weighted sum from the whole; a micro-batch weighs by its share of the groups."""
    return abs(sum((j - i) / whole[1] * steps[i, j].loss for i, j in split) - steps[whole].loss)


def _gradient_differences(
    split: tuple[Range, ...], steps: Mapping[Range, _Step], whole: Range
) -> Iterator[tuple[str, float]]:
    """Name and relative L2 distance of each LoRA tensor that has a gradient anywhere; elsewhere it counts as zero."""
    weighted, expected = [((j - i) / whole[1], steps[i, j].gradients) for i, j in split], steps[whole].gradients
    for name in sorted(expected.keys() | {name for _, part in weighted for name in part}):
        zero = torch.zeros(())
        difference = sum((weight * part.get(name, zero) for weight, part in weighted), -expected.get(name, zero))
        distance, norm = float(difference.norm()), float(expected.get(name, zero).norm())
        yield name, distance / norm if norm != 0 else math.inf if distance != 0 else 0.0


NORMALISATION = ExactCheck(
    name="normalisation",
    claims=(
        "Of three uneven groups, in every split into contiguous micro-batches: the sum of their losses, each weighted "
        "with its share of the groups, is the loss of the whole batch but for rounding. For the split 1 + 2 so is the "
        "gradient of every LoRA tensor."
    ),
    cannot_see="A wrong objective that is a mean over groups; subjects that compute no loss of their own.",
    cases=("uneven-groups",),
    measure=_measure,
)

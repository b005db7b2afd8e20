"""The loss is a mean over groups: in every split into micro-batches their weighted sum is that of the batch."""

from __future__ import annotations

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
    """Loss and LoRA gradients of a range of groups, float64; no gradients where the subject has none."""

    loss: float
    gradients: Mapping[str, Tensor]


def _measure(bench: Bench, case: Case) -> Measured:
    if not owns_loss(bench.subject):
        raise NotApplicableError("computes no loss of its own: the runner takes the mean over groups")
    num_groups, budgets = len(case.groups), measured(bench.setting.yardsticks.losses)
    differentiable = gradient_support(bench.subject, bench.model).supported
    steps = {(i, j): _step(bench, case, i, j, differentiable) for i, j in combinations(range(num_groups + 1), 2)}
    whole = steps[0, num_groups]
    compared, differing, largest, worst = 0, 0, 0.0, ""
    for split in _splits(num_groups):
        if len(split) == 1:
            continue
        for name, difference, budget in _differences(split, steps, whole, num_groups, budgets.loss, budgets.gradients):
            compared += 1
            differing += not difference <= budget  # NaN never equals
            ratio = difference / budget
            if not ratio <= largest:
                sizes = " + ".join(str(j - i) for i, j in split)
                largest = ratio
                worst = f"{name} of {sizes} groups in turn is {difference:.3g} from that of all at once"
    return Measured(num_compared=compared, num_differing=differing, worst=worst if differing else "", ratio=largest)


def _step(bench: Bench, case: Case, first: int, last: int, differentiable: bool) -> _Step:
    groups = case.groups[first:last]
    subject, num_completions = bench.subject, sum(len(group.completions) for group in groups)
    with torch.set_grad_enabled(differentiable):
        output = bench.call(lambda: subject.loss(bench.model, groups, bench.setting.objective))  # type: ignore[attr-defined]
        loss, _ = check_loss(
            output, subject=subject.name, num_completions=num_completions, differentiable=differentiable
        )
        gradients = lora_gradients(loss, bench.model) if differentiable else {}
    for parameter in bench.model.parameters():
        parameter.grad = None
    return _Step(float(loss.detach()), gradients)


def _splits(num_groups: int) -> Iterator[tuple[Range, ...]]:
    """Every way to cut groups 0, 1, 2, ... into contiguous ranges; of three: 3, 1+2, 2+1, 1+1+1."""
    for count in range(num_groups):
        for cuts in combinations(range(1, num_groups), count):
            edges = (0, *cuts, num_groups)
            yield tuple(pairwise(edges))


def _differences(
    split: tuple[Range, ...],
    steps: Mapping[Range, _Step],
    whole: _Step,
    num_groups: int,
    loss_budget: float,
    gradient_budgets: Mapping[str, float],
) -> Iterator[tuple[str, float, float]]:
    """Name, distance and budget of the loss and of each LoRA tensor; micro-batches weigh by their share of groups."""
    weighted = [((j - i) / num_groups, steps[i, j]) for i, j in split]
    yield "the loss", abs(sum(weight * step.loss for weight, step in weighted) - whole.loss), loss_budget
    for name, gradient in whole.gradients.items():
        combined = sum((weight * step.gradients[name] for weight, step in weighted), torch.zeros_like(gradient))
        distance = float((combined - gradient).norm() / gradient.norm())
        yield f"the gradient of {name}", distance, gradient_budgets[name]


NORMALISATION = ExactCheck(
    name="normalisation",
    claims=(
        "Of four uneven groups, in every split into contiguous micro-batches: the sum of their losses, each weighted "
        "with its share of the groups, is the loss of the whole batch but for rounding; so is that of every gradient "
        "of a LoRA tensor."
    ),
    cannot_see="A wrong objective that is a mean over groups; subjects that compute no loss of their own.",
    cases=("uneven-groups",),
    measure=_measure,
)

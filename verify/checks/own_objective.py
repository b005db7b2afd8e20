"""Rewards and loss of a subject follow from the log-probs that it returned itself: no rounding of a model is in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.objective import DpoSigmoid
from verify.observation import to_float64
from verify.subject import check_logps, check_loss, owns_loss
from verify.subjects.oracle import apply_objective

_ROUNDINGS = 4
"""Of a reward beside those of its sum: the difference to the reference, the product with beta, the margin, the loss."""


def _measure(bench: Bench, case: Case) -> Measured:
    subject, groups, objective = bench.subject, case.groups, bench.setting.objective
    if not owns_loss(subject):
        raise NotApplicableError("computes no loss of its own: the runner applies the objective to its log-probs")
    with torch.no_grad():
        output = bench.call(lambda: subject.loss(bench.model, groups, objective))  # type: ignore[attr-defined]
    num_completions = sum(len(group.completions) for group in groups)
    loss, rewards = check_loss(output, subject=subject.name, num_completions=num_completions, differentiable=False)
    given = getattr(output, "per_token_logps", None), getattr(output, "ref_per_token_logps", None)
    if given[0] is None or given[1] is None:
        raise NotApplicableError("returns no log-probs with its loss")
    logps, refs = (check_logps(part, groups, subject=subject.name, differentiable=False) for part in given)
    epsilon = max(float(torch.finfo(dtype).eps) for dtype in {torch.float32, *(logp.dtype for logp in (*logps, *refs))})
    logps, refs = (tuple(map(to_float64, part)) for part in (logps, refs))
    expected = apply_objective(logps, refs, groups, objective)
    budgets = reward_budgets(logps, refs, objective, epsilon)
    loss_budget = 2 * sum(budgets) / len(budgets) + _ROUNDINGS * epsilon * abs(float(expected.loss))
    compared, differing, largest, worst = 0, 0, 0.0, ""
    values = zip(
        [*_names(num_completions), "the loss"],
        [*rewards.tolist(), float(loss)],
        [*expected.rewards.tolist(), float(expected.loss)],
        [*budgets, loss_budget],
        strict=True,
    )
    for what, actual, wanted, budget in values:
        difference = abs(actual - wanted)
        compared += 1
        differing += not difference <= budget  # NaN never equals
        ratio = _ratio(difference, budget)
        if ratio > largest:
            largest, worst = ratio, f"{what} is {actual:.9g}, but its own log-probs make it {wanted:.9g}"
    return Measured(num_compared=compared, num_differing=differing, worst=worst if differing else "", ratio=largest)


def reward_budgets(
    logps: Sequence[Tensor], refs: Sequence[Tensor], objective: DpoSigmoid, epsilon: float
) -> list[float]:
    """How far rounding can move the reward of each completion: beta (T + 4) eps sum_t (|logp_t| + |ref_logp_t|).

    A sum of T numbers in whatever order is off by at most (T - 1) eps times the sum of their sizes (Higham 2002,
    eq. 4.4).

    Args:
        logps: Policy log-probs, one vector per completion.
        refs: Reference log-probs.
        objective: For beta.
        epsilon: Of the dtype that sums are kept in.

    Returns:
        One budget per completion, in nats.
    """
    return [
        objective.beta * (len(logp) + _ROUNDINGS) * epsilon * float(logp.abs().sum() + ref.abs().sum())
        for logp, ref in zip(logps, refs, strict=True)
    ]


def _ratio(difference: float, budget: float) -> float:
    """Infinite for NaN, and where something differs and nothing may: all log-probs are zero."""
    if math.isnan(difference):
        return math.inf
    if budget > 0:
        return difference / budget
    return math.inf if difference else 0.0


def _names(num_completions: int) -> Iterator[str]:
    for index in range(num_completions):
        yield f"the reward of group {index // 2}, {'rejected' if index % 2 else 'chosen'}"


OWN_OBJECTIVE = ExactCheck(
    name="own-objective",
    claims=(
        "Every reward is beta times the difference of the sums of the very log-probs that were returned, and the loss "
        "is that of their margins, but for the rounding of sums: in float32, or in the dtype of the log-probs where "
        "that is a narrower one. It is as sharp in a bfloat16 model: nothing that the model rounds is in it."
    ),
    cannot_see=(
        "Wrong log-probs; gradients; subjects that compute no loss of their own, or return no log-probs with it. Sums "
        "in bfloat16 of log-probs in float32 are found."
    ),
    cases=("uneven-groups", "special-ids"),
    measure=_measure,
)

"""Rewards and loss of a subject follow from the log-probs that it returned itself: no rounding of a model is in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.of_rewards import loss_of_its_rewards
from verify.checks.places import completion_words
from verify.groups import PreferenceGroup
from verify.objective import Preference, objective_named
from verify.passes import ObjectiveValues
from verify.preference_budget import moved_by
from verify.subject import owns_loss
from verify.subjects.oracle import apply_objective
from verify.supervised_values import pair_margins, supervised_logps

_ROUNDINGS = 4
"""Of a reward beside those of its sum: the difference to the reference, the product with beta, the margin, the loss."""


def _measure(bench: Bench, case: Case) -> Measured:
    groups, objective = case.groups, bench.objective_of(case)
    if not owns_loss(bench.subject):
        raise NotApplicableError("computes no loss of its own: the runner applies the objective to its log-probs")
    output = bench.own_loss(groups, objective)
    if output.logps is None or (output.refs is None and isinstance(objective, Preference)):
        raise NotApplicableError("returns no log-probs with its loss")
    expected = apply_objective(output.logps, output.refs or (), groups, objective)
    if isinstance(objective, Preference):
        logps, refs = (supervised_logps(part, groups) for part in (output.logps, output.refs or ()))
        budgets = reward_budgets(logps, refs, objective, output.epsilon)
        loss_budget = preference_rounding(objective, groups, budgets, expected, logps, output.epsilon)
    else:
        budgets = []
        loss_budget = sft_rounding(output.logps, case, output.epsilon)
    compared, differing, largest, worst = 0, 0, 0.0, ""
    values = zip(
        [*([f"the reward of {name}" for name in _names(groups)] if budgets else []), "the loss"],
        [*output.rewards.tolist(), output.loss],
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
    logps: Sequence[Tensor], refs: Sequence[Tensor], objective: Preference, epsilon: float
) -> list[float]:
    """How far rounding can move the reward of each completion: beta (T + 4) eps sum_t (|logp_t| + |ref_logp_t|).

    A T-th of that where a mean is taken.

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
        objective.beta
        * (len(logp) + _ROUNDINGS)
        * epsilon
        * float(logp.abs().sum() + ref.abs().sum())
        / (1 if objective.sums_tokens else len(logp))
        for logp, ref in zip(logps, refs, strict=True)
    ]


def preference_rounding(
    objective: Preference,
    groups: Sequence[PreferenceGroup],
    rewards: Sequence[float],
    expected: ObjectiveValues,
    logps: Sequence[Tensor],
    epsilon: float,
) -> float:
    """How far rounding can move a preference loss: through its rewards, its own value and its NLL.

    Args:
        objective: The objective.
        groups: The groups.
        rewards: How far rounding can move each reward.
        expected: Rewards and loss from the log-probs of the subject.
        logps: Those log-probs.
        epsilon: Of the dtype that sums are kept in.

    Returns:
        The budget, in nats.
    """
    through = moved_by(objective, groups, pair_margins(expected.rewards, groups), rewards, epsilon)
    nll = objective.nll_weight * max((len(logp) + _ROUNDINGS) * float(logp.abs().mean()) for logp in logps)
    return through + epsilon * (_ROUNDINGS * abs(float(expected.loss)) + nll)


def sft_rounding(logps: Sequence[Tensor], case: Case, epsilon: float) -> float:
    """How far rounding can move an SFT loss: (N + 4) eps times the mean of the sizes, as for a sum of rewards.

    Args:
        logps: Log-probs of all tokens, one vector per completion.
        case: Says which mean, and which N tokens are supervised.
        epsilon: Of the dtype that sums are kept in.

    Returns:
        The budget, in nats.
    """
    sizes = apply_objective(
        [-logp.abs() for logp in logps], (), case.groups, objective_named(case.objective_name, Preference())
    )
    return (case.num_completion_tokens + _ROUNDINGS) * epsilon * float(sizes.loss)


def _ratio(difference: float, budget: float) -> float:
    """Infinite for NaN, and where something differs and nothing may: all log-probs are zero."""
    if math.isnan(difference):
        return math.inf
    if budget > 0:
        return difference / budget
    return math.inf if difference else 0.0


def _names(groups: Sequence[PreferenceGroup]) -> Iterator[str]:
    for g, group in enumerate(groups):
        for k in range(len(group.completions)):
            yield completion_words(groups, g, k)


OWN_OBJECTIVE = ExactCheck(
    name="own-objective",
    claims=(
        "Every reward is beta times the difference of the sums of the very log-probs that were returned, and the loss "
        "is that of their margins (of a group of m + n the mean over its m n pairs); under SFT the loss is the mean of "
        "-log p over exactly the supervised tokens, by tokens or by examples as the objective says. All but for the "
        "rounding of sums: in float32, or in the dtype of the log-probs where that is a narrower one. It is as sharp "
        "in a bfloat16 model: nothing that the model rounds is in it. The loss of a reward model is the Bradley-Terry "
        "loss of the rewards returned with it, but for rounding in float32 or in their dtype."
    ),
    cannot_see=(
        "Wrong log-probs; gradients; subjects that compute no loss of their own, or return no log-probs with it. Sums "
        "in bfloat16 of log-probs in float32 are found."
    ),
    cases=(
        "uneven-groups",
        "special-ids",
        "distinct-turns",
        "groups-of-one-prompt",
        "distinct-examples",
        "examples-weighed-alike",
        "one-conversation",
    ),
    measure=_measure,
    of_rewards=loss_of_its_rewards,
)

"""Everything in which a subject differs from the unpacked path on one case, beside what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verify.cases import Case
from verify.comparison import Comparison, Quantity, compare_observations
from verify.groups import PreferenceGroup
from verify.judgement import JudgingContext, judge
from verify.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientDifference:
    """One trained tensor.

    Args:
        relative: ||actual - expected|| / ||expected||; infinite where it is not 0 and has to be.
        norm_ratio: ||actual|| / ||expected||.
        cosine: Between the two; NaN where one of them is zero.
        beyond: Whether it differs by more than its budget, or is not finite.
        missing: There is no gradient at all.
        finite: Whether it is NaN or infinite nowhere.
    """

    relative: float
    norm_ratio: float
    cosine: float
    beyond: bool
    missing: bool = False
    finite: bool = True

    @property
    def not_zero(self) -> bool:
        """Whether it is not 0 where it has to be: in a row of a token that takes no part, or throughout."""
        return self.finite and math.isinf(self.relative)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Actual minus expected on one case; a value differs if it is beyond its budget.

    Args:
        groups: The groups of the case.
        logps: Policy log-probs of supervised tokens, one float64 vector per completion; none of a reward model.
        ref_logps: Reference log-probs; none where there is no reference.
        rewards: [completions]; none under SFT.
        loss: Of the mean loss.
        gradients: By trained tensor; empty where there are none to compare.
        logps_beyond: Which log-probs differ; bool, as ``logps``.
        ref_logps_beyond: The same of the reference.
        rewards_beyond: Which rewards differ; bool, as ``rewards``.
        beyond: Quantities of which some value differs.
        non_finite: Quantities of which some value is not finite.
        logp_budget: Budget of one policy log-prob, in nats; infinite of a reward model.
        unexpected_gradients: Trained tensors that have a gradient and should not.
    """

    groups: Sequence[PreferenceGroup]
    logps: tuple[Tensor, ...]
    ref_logps: tuple[Tensor, ...]
    rewards: Tensor
    loss: float
    gradients: Mapping[str, GradientDifference]
    logps_beyond: tuple[Tensor, ...]
    ref_logps_beyond: tuple[Tensor, ...]
    rewards_beyond: Tensor
    beyond: frozenset[Quantity]
    non_finite: frozenset[Quantity]
    logp_budget: float
    unexpected_gradients: tuple[str, ...] = ()


def measure_differences(actual: Observation, expected: Observation, case: Case, context: JudgingContext) -> Differences:
    """Measure.

    Args:
        actual: The subject's observation. Trained tensors without gradient count as zero and are named.
        expected: The unpacked path's.
        case: The case.
        context: Budgets come from it, through the judgement of the gate.

    Returns:
        The differences.

    Raises:
        StructureError: The two hold values of different shapes.
    """
    completed, missing, unexpected = _with_all_gradients(actual, expected)
    comparisons = compare_observations(completed, expected, case.groups)
    scalars = [comparison for comparison in comparisons if comparison.quantity != "gradients"]
    tensors = [comparison for comparison in comparisons if comparison.quantity == "gradients"]
    largest, failing = _budgets(scalars, tensors[:1], expected, context)
    gradients = {t.part: _gradient(t, scalars, expected, context, t.part in missing) for t in tensors}
    if any(gradient.beyond for gradient in gradients.values()) or unexpected:
        failing |= {"gradients"}
    logps = _minus(actual.per_token_logps, expected.per_token_logps)
    ref_logps = _minus(actual.ref_per_token_logps, expected.ref_per_token_logps)
    rewards = actual.rewards - expected.rewards
    return Differences(
        groups=case.groups,
        logps=logps,
        ref_logps=ref_logps,
        rewards=rewards,
        loss=float(actual.loss - expected.loss),
        gradients=gradients,
        logps_beyond=tuple(_beyond(x, largest["per_token_logps"]) for x in logps),
        ref_logps_beyond=tuple(_beyond(x, largest["ref_per_token_logps"]) for x in ref_logps),
        rewards_beyond=_beyond(rewards, largest.get("rewards", math.inf)),
        beyond=frozenset(failing),
        non_finite=frozenset(c.quantity for c in comparisons if c.non_finite is not None),
        logp_budget=largest.get("per_token_logps", math.inf),
        unexpected_gradients=unexpected,
    )


def _with_all_gradients(
    actual: Observation, expected: Observation
) -> tuple[Observation, frozenset[str], tuple[str, ...]]:
    if actual.gradients is None or expected.gradients is None:
        return actual, frozenset(), ()
    missing = expected.gradients.keys() - actual.gradients.keys()
    unexpected = tuple(sorted(actual.gradients.keys() - expected.gradients.keys()))
    filled = {n: actual.gradients.get(n, torch.zeros_like(g)) for n, g in expected.gradients.items()}
    return replace(actual, gradients=filled), frozenset(missing), unexpected


def _budgets(
    scalars: Sequence[Comparison], one_tensor: Sequence[Comparison], expected: Observation, context: JudgingContext
) -> tuple[dict[Quantity, float], set[Quantity]]:
    """Largest difference that passes for one value of each quantity, and the quantities that fail."""
    judgements = judge(
        [*scalars, *one_tensor], "differential", expected, context, gradients_absent_because="not compared"
    )
    judged = [judgement for judgement in judgements if judgement.quantity != "gradients"]
    largest = {j.quantity: j.budget.value for j in judged if j.budget is not None and j.statistic == "max"}
    return largest, {j.quantity for j in judged if not j.ratio <= 1}


def _gradient(
    tensor: Comparison, scalars: Sequence[Comparison], expected: Observation, context: JudgingContext, missing: bool
) -> GradientDifference:
    judgements = judge([*scalars, tensor], "differential", expected, context, gradients_absent_because="")
    beyond = any(not j.ratio <= 1 for j in judgements if j.quantity == "gradients")
    return GradientDifference(
        relative=tensor.rms,
        norm_ratio=tensor.norm_ratio,
        cosine=tensor.cosine,
        beyond=beyond or missing or tensor.non_finite is not None,
        missing=missing,
        finite=tensor.non_finite is None,
    )


def _minus(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(a - e for a, e in zip(actual, expected, strict=True))


def _beyond(difference: Tensor, budget: float) -> Tensor:
    """NaN counts as beyond; so does everything where there is no finite budget to be within."""
    return ~(difference.abs() <= budget) if math.isfinite(budget) else torch.ones_like(difference, dtype=torch.bool)

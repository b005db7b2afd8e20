"""Holding measured differences against budgets: one judgement per quantity, kind of budget and statistic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verify.budget import Budget, Statistic, direct_budget, sft_loss_budget
from verify.comparison import Comparison, Place, Quantity
from verify.groups import PreferenceGroup
from verify.noise import BudgetKind, NoiseFloor
from verify.objective import Objective, Preference, RewardModel, Sft
from verify.observation import Observation
from verify.preference_budget import coefficient_noise, loss_budget, margin_budgets, reward_budgets
from verify.reward_budget import reward_coefficient_noise, reward_model_budgets
from verify.router_budget import router_loss_budget, share_budget
from verify.router_ties import RouterTies
from verify.summation import coefficient_rounding
from verify.tolerance import Policy
from verify.verdict import Verdict, fold

STATISTICS: tuple[Statistic, ...] = ("max", "rms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One measured difference, its budget and what follows.

    Args:
        quantity: What was compared.
        kind: Against the oracle or against the unpacked witness.
        statistic: Maximum or RMS; for gradients of the LoRA tensor whose measured / budget is largest.
        verdict: PASS, FAIL, NOT_APPLICABLE, or INCONCLUSIVE where there is no finite budget.
        reason: Empty on PASS.
        num_compared: Values compared; 0 for NOT_APPLICABLE.
        measured: The difference, None for NOT_APPLICABLE.
        budget: The bound, None for NOT_APPLICABLE.
        signed_mean: Drift, None for NOT_APPLICABLE.
        worst: Places of the largest differences.
    """

    quantity: Quantity
    kind: BudgetKind
    statistic: Statistic
    verdict: Verdict
    reason: str = ""
    num_compared: int = 0
    measured: float | None = None
    budget: Budget | None = None
    signed_mean: float | None = None
    worst: tuple[Place, ...] = ()

    @property
    def ratio(self) -> float:
        """Measured / budget; infinite if not finite or if the budget is zero and something was measured."""
        if self.measured is None or self.budget is None:
            return math.nan
        return ratio_of(self.measured, self.budget.value)


def ratio_of(measured: float, budget: float) -> float:
    """Measured / budget, infinite where that is not a number: NaN never reads as small.

    >>> ratio_of(1.0, 4.0), ratio_of(0.0, 0.0), ratio_of(float("nan"), 1.0)
    (0.25, 0.0, inf)
    """
    if not (math.isfinite(measured) and math.isfinite(budget)):
        return math.inf
    if budget > 0:
        return measured / budget
    return 0.0 if measured == 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingContext:
    """What is needed to turn comparisons of one case and dtype into judgements."""

    case: str
    groups: Sequence[PreferenceGroup]
    dtype_name: str
    objective: Objective
    policy: Policy
    noise: NoiseFloor
    ties: RouterTies | None = None


class Judge:
    """Judges what subjects computed on one case in one dtype. What the budgets are made of is worked out once.

    Args:
        kind: "oracle" or "differential".
        expected: The oracle's or the witness's observation.
        context: Case, policy and noise.
    """

    def __init__(self, kind: BudgetKind, expected: Observation, context: JudgingContext) -> None:
        self._kind, self._expected, self._context = kind, expected, context
        self._direct = {
            quantity: _vector_budgets(quantity, kind, values, context)
            for quantity, values in _direct_of(expected).items()
        }
        if expected.balance:
            shares = share_budget(kind, context.case, noise=context.noise, policy=context.policy, ties=context.ties)
            self._direct["router_shares"] = {"max": shares}
        source = f"from the {'log-prob' if expected.per_token_logps else 'reward'} budgets"
        self._scalars = {
            quantity: Budget(value=value, factor=1.0, floor=0.0, noise=value, source=source)
            for quantity, value in _scalar_budgets(expected, context, self._direct).items()
        }
        self._coefficient: tuple[float, float] | None = None
        self._gradients: dict[tuple[str, float], dict[Statistic, Budget]] = {}

    def __call__(self, comparisons: Sequence[Comparison], *, gradients_absent_because: str) -> tuple[Judgement, ...]:
        """Judge every comparison of a subject with the expectation.

        Args:
            comparisons: Of the subject against the expectation.
            gradients_absent_because: Reason where the subject has no gradients; they are then NOT_APPLICABLE.

        Returns:
            Judgements in the order of the quantities, both statistics for what comes from the model.

        Raises:
            ValueError: No comparisons.
        """
        if not comparisons:
            raise ValueError(f"case {self._context.case}: nothing was compared")
        by_quantity = {c.quantity: c for c in comparisons if not c.part}
        judgements = [
            _judgement(by_quantity[quantity], self._kind, statistic, budget)
            for quantity, of_statistic in self._direct.items()
            if quantity in by_quantity  # what a subject says of its routers, it may keep to itself
            for statistic, budget in of_statistic.items()
        ]
        judgements += [
            _judgement(by_quantity[quantity], self._kind, "max", budget) for quantity, budget in self._scalars.items()
        ]
        gradients = [c for c in comparisons if c.quantity == "gradients"]
        if not gradients:
            return (*judgements, *_no_gradients(self._kind, gradients_absent_because))
        return (*judgements, *self._of_gradients(gradients))

    def _of_gradients(self, comparisons: Sequence[Comparison]) -> list[Judgement]:
        budgets = [self._gradient_budgets(comparison.part, comparison.peak) for comparison in comparisons]
        return [
            _worst_of([(c, of[statistic]) for c, of in zip(comparisons, budgets, strict=True)], self._kind, statistic)
            for statistic in STATISTICS
        ]

    def _gradient_budgets(self, part: str, peak: float) -> dict[Statistic, Budget]:
        if (part, peak) not in self._gradients:
            noise, rounding = self._coefficients()
            self._gradients[part, peak] = direct_budget(
                self._kind,
                "gradients",
                part,
                case=self._context.case,
                num_values=sum(map(len, self._expected.per_token_logps)) or len(self._expected.rewards),
                size={"max": peak, "rms": 1.0},
                dtype_name=self._context.dtype_name,
                noise=self._context.noise,
                policy=self._context.policy,
                peak=peak,
                shared_noise=noise,
                shared_rounding=rounding,
            )
        return self._gradients[part, peak]

    def _coefficients(self) -> tuple[float, float]:
        """Noise and rounding of the coefficients of gradients, worked out once."""
        if self._coefficient is None:
            context, self._coefficient = self._context, (0.0, 0.0)  # the weights of SFT are constants
            if isinstance(context.objective, RewardModel):
                noise = reward_coefficient_noise(
                    self._kind, context.groups, self._expected,
                    case=context.case, noise=context.noise, policy=context.policy,
                )  # fmt: skip
                self._coefficient = noise, 0.0  # no log-probs are summed
            elif isinstance(context.objective, Preference):
                noise = coefficient_noise(
                    self._kind, context.groups, self._expected, context.objective,
                    case=context.case, noise=context.noise, policy=context.policy,
                )  # fmt: skip
                rounding = coefficient_rounding(
                    context.groups, self._expected, context.objective,
                    dtype_name=context.dtype_name, policy=context.policy,
                )  # fmt: skip
                self._coefficient = noise, rounding
        return self._coefficient


def judge(
    comparisons: Sequence[Comparison],
    kind: BudgetKind,
    expected: Observation,
    context: JudgingContext,
    *,
    gradients_absent_because: str,
) -> tuple[Judgement, ...]:
    """Judge one subject, as :class:`Judge` judges several.

    Args:
        comparisons: Of the subject against ``expected``.
        kind: "oracle" or "differential".
        expected: The oracle's or the witness's observation.
        context: Case, policy and noise.
        gradients_absent_because: Reason where the subject has no gradients; they are then NOT_APPLICABLE.

    Returns:
        Judgements in the order of the quantities, both statistics for what comes from the model.

    Raises:
        ValueError: No comparisons.
    """
    return Judge(kind, expected, context)(comparisons, gradients_absent_because=gradients_absent_because)


def _vector_budgets(
    quantity: Quantity, kind: BudgetKind, expected: Sequence[Tensor], context: JudgingContext
) -> dict[Statistic, Budget]:
    values = torch.cat(list(expected))
    return direct_budget(
        kind,
        quantity,
        "",
        case=context.case,
        num_values=len(values),
        size={"max": float(values.abs().max()), "rms": float(values.square().mean().sqrt())},
        dtype_name=context.dtype_name,
        noise=context.noise,
        policy=context.policy,
    )


def _direct_of(expected: Observation) -> dict[Quantity, tuple[Tensor, ...]]:
    """What is compared as it comes from the model: log-probs, or the rewards of a reward model."""
    if not expected.per_token_logps:
        return {"rewards": (expected.rewards,)}
    logps: dict[Quantity, tuple[Tensor, ...]] = {"per_token_logps": expected.per_token_logps}
    if expected.ref_per_token_logps:
        logps["ref_per_token_logps"] = expected.ref_per_token_logps
    if expected.balance:
        logps["router_probs"] = (expected.balance.probs,)
    return logps


def _scalar_budgets(
    expected: Observation, context: JudgingContext, direct: Mapping[Quantity, Mapping[Statistic, Budget]]
) -> dict[Quantity, float]:
    """Budgets that follow from those of what comes from the model."""
    if isinstance(context.objective, RewardModel):
        return reward_model_budgets(expected, direct["rewards"])
    of_routers = 0.0
    if expected.balance:
        of_routers = context.objective.router_aux_loss_coef * router_loss_budget(
            expected.balance,
            context.groups,
            probs_rms=direct["router_probs"]["rms"].value,
            shares_max=direct["router_shares"]["max"].value,
        )
    logp_budgets = {
        quantity: direct[quantity]["rms"].value
        for quantity in ("per_token_logps", "ref_per_token_logps")
        if quantity in direct
    }
    if isinstance(context.objective, Sft):
        of_logps = sft_loss_budget(context.objective, expected, logps_rms=logp_budgets["per_token_logps"])
        return {"loss": of_logps + of_routers}
    rewards = reward_budgets(
        context.groups,
        expected,
        context.objective,
        logps_rms=logp_budgets["per_token_logps"],
        ref_logps_rms=logp_budgets["ref_per_token_logps"],
    )
    margins = margin_budgets(rewards, context.groups)
    # One bound for all completions: the largest. A reward is off by nats or by rounding, nothing lies between.
    return {
        "rewards": max(rewards),
        "margins": max(map(max, margins)),
        "loss": loss_budget(
            context.objective,
            context.groups,
            expected,
            rewards=rewards,
            logps_rms=logp_budgets["per_token_logps"],
        )
        + of_routers,
    }


def _no_gradients(kind: BudgetKind, absent_because: str) -> list[Judgement]:
    return [
        Judgement(
            quantity="gradients",
            kind=kind,
            statistic=statistic,
            verdict=Verdict.NOT_APPLICABLE,
            reason=absent_because,
        )
        for statistic in STATISTICS
    ]


def _worst_of(tensors: Sequence[tuple[Comparison, Budget]], kind: BudgetKind, statistic: Statistic) -> Judgement:
    """The judgement of the worst tensor speaks for all; one for each would be built to be thrown away."""
    verdicts = [_verdict(comparison, statistic, budget) for comparison, budget in tensors]
    verdict = fold(verdicts)
    alike = [tensor for tensor, of_tensor in zip(tensors, verdicts, strict=True) if of_tensor is verdict]
    comparison, budget = max(alike, key=lambda tensor: ratio_of(_measured(tensor[0], statistic), tensor[1].value))
    worst = _judgement(comparison, kind, statistic, budget)
    return replace(
        worst,
        reason=f"{worst.reason} ({len(alike)} of {len(tensors)} tensors)" if worst.reason else "",
        num_compared=sum(of_tensor.num_compared for of_tensor, _ in tensors),
    )


def _measured(comparison: Comparison, statistic: Statistic) -> float:
    return comparison.max if statistic == "max" else comparison.rms


def _verdict(comparison: Comparison, statistic: Statistic, budget: Budget) -> Verdict:
    if comparison.non_finite is not None:
        return Verdict.FAIL
    if not math.isfinite(budget.value):
        return Verdict.INCONCLUSIVE
    # Not "measured > budget": NaN must fail.
    return Verdict.PASS if _measured(comparison, statistic) <= budget.value else Verdict.FAIL


def _judgement(comparison: Comparison, kind: BudgetKind, statistic: Statistic, budget: Budget) -> Judgement:
    measured, verdict = _measured(comparison, statistic), _verdict(comparison, statistic, budget)
    reason = "" if verdict is Verdict.PASS else f"{comparison.quantity}: {_why(comparison, kind, statistic, budget)}"
    return Judgement(
        quantity=comparison.quantity,
        kind=kind,
        statistic=statistic,
        verdict=verdict,
        reason=reason,
        num_compared=comparison.num_compared,
        measured=measured,
        budget=budget,
        signed_mean=comparison.signed_mean,
        worst=comparison.worst,
    )


def _why(comparison: Comparison, kind: BudgetKind, statistic: Statistic, budget: Budget) -> str:
    """Why it is not PASS."""
    if (place := comparison.non_finite) is not None:
        return f"{place.actual} at {place.where} (expected {place.expected:.6g})"
    if not math.isfinite(budget.value):
        return f"the noise floor is {budget.noise} ({budget.source}): there is no budget"
    measured, against = _measured(comparison, statistic), "the oracle" if kind == "oracle" else "the unpacked path"
    return (
        f"{statistic} distance to {against} {measured:.3g}, budget {budget.value:.3g} "
        f"({ratio_of(measured, budget.value):.3g} x); worst at {comparison.worst[0].where}"
    )

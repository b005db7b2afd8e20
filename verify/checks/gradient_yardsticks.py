"""Loss and gradients of the unpacked path on a batch, and how far rounding alone moves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

import torch
from torch import Tensor

from verify.budget import Statistic, direct_budget, sft_loss_budget
from verify.cases import Case
from verify.checks.shares import shares
from verify.comparison import Comparison, Quantity, compare_observations
from verify.groups import PreferenceGroup
from verify.model_state import Baseline
from verify.models.sliding_window import sliding_window
from verify.noise import NoiseFloor, NoiseSample, measure_noise
from verify.objective import Objective, Preference, RewardModel, Sft
from verify.observation import Observation, observe
from verify.preference_budget import coefficient_noise, loss_budget, reward_budgets
from verify.subjects.oracle import apply_objective
from verify.subjects.pairwise import VARIATIONS, PairwiseSubject
from verify.summation import coefficient_rounding
from verify.tolerance import Policy

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """Forms of the unpacked path. Each is one call for all sequences: with gradients a call for each would take long.

    Args:
        in_turn: Runs the first group of a batch and the others one after the other.
        whole: Run the batch at once; one at least.
    """

    in_turn: PairwiseSubject
    whole: tuple[PairwiseSubject, ...]

    def on(self, model: Any, dtype: str) -> Forms:
        """These forms, without padding in eager attention where that is not finite.

        Padding on the right sees the sequence before it, but not beyond the reach of a sliding window. Then it has no
        key, and eager softmax, whose mask is the lowest float64, works in float32.
        """
        if dtype != "float64" or sliding_window(model.config) is None:
            return self
        return replace(self, whole=tuple(VARIATIONS["eager"] if form == _EAGER else form for form in self.whole))


_EAGER = replace(VARIATIONS["padded-right"], name="eager-padded-right", attention="eager")
"""Padded on the left it has queries without any key, which are not finite in float64."""
_PADDED = Forms(in_turn=VARIATIONS["padded-right"], whole=(VARIATIONS["padded-right"], VARIATIONS["padded-left"]))
PADDED_AND_EAGER = Forms(in_turn=VARIATIONS["padded-left"], whole=(_EAGER,))
"""For a subject that is held against the unpacked path."""


def held_against_itself(dtype: str) -> Forms:
    """Forms for a subject that is held against itself, whatever its attention.

    Eager softmax works in float32 in every dtype, so that in float64 it alone rounds: what SDPA computes alike to the
    last bit, it may not. In narrower dtypes its noise in one pass is that of SDPA, and the distance between the two,
    which is no noise of either, would only blunt the check.

    Args:
        dtype: What the run computes in.

    Returns:
        The forms.
    """
    return replace(_PADDED, whole=(*_PADDED.whole, _EAGER)) if dtype == "float64" else _PADDED


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientYardstick:
    """What the unpacked path computes on a batch, and the budgets of whoever computes the same.

    Args:
        loss: The loss, in nats.
        gradients: Of each LoRA tensor, float64.
        loss_budget: Largest difference of the loss, in nats.
        gradient_budgets: Of each LoRA tensor, as relative L2.
    """

    loss: float
    gradients: Mapping[str, Tensor]
    loss_budget: float
    gradient_budgets: Mapping[str, float]


def measure_gradients(
    model: Any,
    baseline: Baseline,
    case: Case,
    *,
    dtype: str,
    objective: Objective,
    policy: Policy,
    seed: int,
    forms: Forms,
) -> GradientYardstick:
    """Run the unpacked path on a batch of two groups or more, in several forms.

    Args:
        model: The model.
        baseline: What it is.
        case: The batch.
        dtype: Name of the dtype.
        objective: The objective, of the kind that the case asks for.
        policy: Factors and floors.
        seed: Seed of the passes.
        forms: The forms.

    Returns:
        What was computed in turn, and the budgets.
    """

    def run(form: PairwiseSubject, groups: Sequence[PreferenceGroup]) -> Observation:
        return observe(form, model, groups, objective, apply_objective=apply_objective, seed=seed, baseline=baseline)

    # Norms work in float32 in every dtype, and a gradient that is scaled otherwise rounds otherwise.
    parts = (case.groups[:1], case.groups[1:])
    expected = _joined([run(forms.in_turn, part) for part in parts], shares(case.objective_name, parts))
    whole = forms.on(model, dtype).whole
    observed = {"in turn": expected, **{form.name: run(form, case.groups) for form in whole}}
    noise = noise_between(case, observed, lambda one, other: compare_observations(one, other, case.groups))
    coefficients, rounding = 0.0, 0.0
    if isinstance(objective, Preference):
        coefficients = coefficient_noise(
            "differential", case.groups, expected, objective, case=case.name, noise=noise, policy=policy
        )
        rounding = coefficient_rounding(case.groups, expected, objective, dtype_name=dtype, policy=policy)
    gradients = expected.gradients or {}
    return GradientYardstick(
        loss=float(expected.loss),
        gradients=gradients,
        loss_budget=_loss_budget(case, expected, objective, noise, dtype, policy),
        gradient_budgets={
            name: direct_budget(
                "differential",
                "gradients",
                name,
                case=case.name,
                num_values=case.num_completion_tokens,
                size={"max": 1.0, "rms": 1.0},
                dtype_name=dtype,
                noise=noise,
                policy=policy,
                shared_noise=coefficients,
                shared_rounding=rounding,
            )["rms"].value
            for name in gradients
        },
    )


def _loss_budget(
    case: Case, expected: Observation, objective: Objective, noise: NoiseFloor, dtype: str, policy: Policy
) -> float:
    logps = logps_budget("rms", "per_token_logps", torch.cat(expected.per_token_logps), case, noise, dtype, policy)
    if isinstance(objective, RewardModel):
        raise ValueError(f"case {case.name}: a reward model has no log-probs, of which this budget is made")
    if isinstance(objective, Sft):
        return sft_loss_budget(objective, expected, logps_rms=logps)
    refs = torch.cat(expected.ref_per_token_logps)
    ref_rms = logps_budget("rms", "ref_per_token_logps", refs, case, noise, dtype, policy)
    rewards = reward_budgets(case.groups, expected, objective, logps_rms=logps, ref_logps_rms=ref_rms)
    return loss_budget(objective, case.groups, expected, rewards=rewards, logps_rms=logps)


def noise_between(case: Case, forms: Mapping[str, _T], compare: Callable[[_T, _T], Sequence[Comparison]]) -> NoiseFloor:
    """The noise among several forms of the unpacked path on one case.

    Args:
        case: The case.
        forms: What each form gave, by its name; two at least.
        compare: Compares two of them.

    Returns:
        The noise floor of that case alone.
    """
    between = {f"{one} against {other}": compare(forms[one], forms[other]) for other, one in combinations(forms, 2)}
    return measure_noise([NoiseSample(case.name, to_oracle=between, between=between)])


def logps_budget(
    statistic: Statistic, quantity: Quantity, values: Tensor, case: Case, noise: NoiseFloor, dtype: str, policy: Policy
) -> float:
    """Budget of log-probs of one case, in nats.

    Args:
        statistic: Of their largest difference, or of its RMS.
        quantity: Of the policy or of the reference.
        values: What the unpacked path computes.
        case: The case.
        noise: The noise among its forms.
        dtype: Name of the dtype.
        policy: Factors and floors.

    Returns:
        The budget.
    """
    budgets = direct_budget(
        "differential",
        quantity,
        "",
        case=case.name,
        num_values=len(values),
        size={"max": float(values.abs().max()), "rms": float(values.square().mean().sqrt())},
        dtype_name=dtype,
        noise=noise,
        policy=policy,
    )
    return budgets[statistic].value


def _joined(parts: Sequence[Observation], of_batch: Sequence[float]) -> Observation:
    """The observation of a batch from those of its micro-batches, each with its share."""
    gradients = [part.gradients or {} for part in parts]
    return Observation(
        per_token_logps=tuple(logps for part in parts for logps in part.per_token_logps),
        ref_per_token_logps=tuple(logps for part in parts for logps in part.ref_per_token_logps),
        rewards=torch.cat([part.rewards for part in parts]),
        margins=torch.cat([part.margins for part in parts]),
        loss=torch.stack([share * part.loss for share, part in zip(of_batch, parts, strict=True)]).sum(),
        gradients={
            name: torch.stack([share * part[name] for share, part in zip(of_batch, gradients, strict=True)]).sum(0)
            for name in gradients[0]
        },
    )

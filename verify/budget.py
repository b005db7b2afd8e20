"""Budgets: how large a difference may be, derived from the noise floor and the policy.

Log-probs and gradients are budgeted directly; a gradient also carries the noise of its pair's coefficient d loss / d
margin. Rewards, margins and the loss follow from the log-prob budgets: a sum of T of the N errors whose RMS is at most
b is at most sqrt(T N) b (Cauchy-Schwarz), and the sigmoid loss moves by no more than its margin does (slope at most 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from verify.comparison import Quantity
from verify.groups import PreferenceGroup
from verify.models.request import DTYPES
from verify.noise import BudgetKind, NoiseFloor
from verify.objective import DpoSigmoid
from verify.observation import Observation
from verify.tolerance import Policy

Statistic = Literal["max", "rms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The largest difference that passes, and where it comes from.

    Args:
        value: The bound, in the unit of the quantity.
        factor: Multiple of the noise.
        floor: Part that does not come from the noise.
        noise: The noise that was multiplied.
        source: What the noise was measured on.
    """

    value: float
    factor: float
    floor: float
    noise: float
    source: str


def direct_budget(
    kind: BudgetKind,
    quantity: Quantity,
    part: str,
    *,
    case: str,
    num_values: int,
    size: Mapping[Statistic, float],
    dtype_name: str,
    noise: NoiseFloor,
    policy: Policy,
    peak: float = 1.0,
    shared_noise: float = 0.0,
) -> dict[Statistic, Budget]:
    """Budget of log-probs, or of one LoRA tensor, for the maximum and for the RMS.

    budget = factor * (max(noise of this case, noise over all cases, widened for n values) + shared noise)
             + epsilons * eps(dtype) * size, widened for n values

    Args:
        kind: Distance to the oracle or to the witness.
        quantity: per_token_logps, ref_per_token_logps or gradients.
        part: Parameter name for gradients, else "".
        case: Name of the case.
        num_values: Number of independent values n behind the statistic: completion tokens.
        size: Size of the expected values (largest, RMS); of relative quantities (peak, 1).
        dtype_name: dtype of the model.
        noise: The noise floor of this dtype.
        policy: Factors and floors.
        peak: Largest expected value over the RMS of the expected values. Errors grow with the value, so the largest
            error over all cases is taken to be ``peak`` times their RMS where that is more than ``max_sigmas`` times.
        shared_noise: Relative noise common to all values (the coefficient of a gradient).

    Returns:
        One budget for each statistic.
    """
    factor = (policy.oracle if kind == "oracle" else policy.differential).factor
    own, pooled = noise.by_case[case, kind, quantity, part], noise.pooled_rms[kind, quantity, part]
    widened = 1 + policy.small_sample.standard_errors / math.sqrt(2 * num_values)
    noises: dict[Statistic, tuple[float, float]] = {
        "max": (own.max, pooled * max(policy.small_sample.max_sigmas, peak)),
        "rms": (own.rms, pooled * widened),
    }
    epsilon = float(torch.finfo(DTYPES[dtype_name]).eps)
    budgets: dict[Statistic, Budget] = {}
    for statistic, (of_case, of_run) in noises.items():
        value = max(of_case, of_run) + shared_noise * (peak if statistic == "max" else 1.0)
        floor = policy.floor.epsilons * epsilon * size[statistic] * widened
        budgets[statistic] = Budget(
            value=factor * value + floor,
            factor=factor,
            floor=floor,
            noise=value,
            source=own.source if of_case >= of_run else f"{own.source}, pooled over the cases",
        )
    return budgets


def coefficient_noise(
    kind: BudgetKind,
    groups: Sequence[PreferenceGroup],
    expected: Observation,
    objective: DpoSigmoid,
    *,
    case: str,
    noise: NoiseFloor,
    policy: Policy,
) -> float:
    """Relative noise of the coefficients c = d loss / d margin that every gradient of a case is multiplied with.

    For one pair c(z) = -[(1-e) sigma(-z) - e sigma(z)], so |dc / c| = sigma(z) sigma(-z) / |c| * |dz| (derived). The
    margin z sums the errors of T tokens under policy and reference: |dz| is taken as ``coefficient_sigmas`` standard
    deviations of that sum, beta sqrt(T (b^2 + b_ref^2)), or as the witness's own error where that is larger. One number
    may be right by luck, which is why the witness's own error alone is no measure.

    Args:
        kind: Distance to the oracle or to the witness.
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        objective: beta and label smoothing.
        case: Name of the case.
        noise: The noise floor of this dtype.
        policy: For the number of standard deviations.

    Returns:
        The largest relative noise over the pairs.
    """
    variance = sum(
        max(noise.by_case[case, kind, quantity, ""].rms, noise.pooled_rms[kind, quantity, ""]) ** 2
        for quantity in ("per_token_logps", "ref_per_token_logps")
    )
    own = noise.by_case[case, kind, "margins", ""].max
    largest = 0.0
    sigmas = (torch.sigmoid(expected.margins).tolist(), torch.sigmoid(-expected.margins).tolist())
    for group, up, down in zip(groups, *sigmas, strict=True):
        num_tokens = sum(len(ids) for ids in group.completions)
        spread = policy.small_sample.coefficient_sigmas * objective.beta * math.sqrt(num_tokens * variance)
        coefficient = abs((1 - objective.label_smoothing) * down - objective.label_smoothing * up)
        largest = max(largest, max(own, spread) * up * down / coefficient if coefficient > 0 else math.inf)
    return largest


def reward_budgets(
    groups: Sequence[PreferenceGroup],
    expected: Observation,
    objective: DpoSigmoid,
    *,
    logps_rms: float,
    ref_logps_rms: float,
) -> list[float]:
    """Budget of each completion's reward, from the RMS budgets of its log-probs.

    |error| <= beta (sqrt(T N) (b + b_ref) + ceil(log2 T) eps32 sum_t (|logp_t| + |ref_logp_t|)), T the tokens of the
    completion, N those of the case; the last term is a pairwise sum in float32, the least that a trainer sums in.

    Args:
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        objective: For beta.
        logps_rms: RMS budget of the policy log-probs, in nats.
        ref_logps_rms: RMS budget of the reference log-probs, in nats.

    Returns:
        One budget per completion, in nats.
    """
    lengths = [len(ids) for group in groups for ids in group.completions]
    total = sum(lengths)
    epsilon = float(torch.finfo(torch.float32).eps)
    budgets = []
    for length, logps, refs in zip(lengths, expected.per_token_logps, expected.ref_per_token_logps, strict=True):
        noise = math.sqrt(length * total) * (logps_rms + ref_logps_rms)
        levels = max(1, math.ceil(math.log2(length)))
        summation = levels * epsilon * float(logps.abs().sum() + refs.abs().sum())
        budgets.append(objective.beta * (noise + summation))
    return budgets


def margin_budgets(rewards: Sequence[float]) -> list[float]:
    """Budget of each pair's margin: the sum of its two reward budgets (chosen, rejected, chosen, ...)."""
    return [chosen + rejected for chosen, rejected in zip(rewards[0::2], rewards[1::2], strict=True)]


def loss_budget(margins: Sequence[float], expected_loss: float) -> float:
    """Budget of the loss: the mean of the margin budgets, since |d loss / d margin| <= 1, plus its float32 rounding."""
    epsilon = float(torch.finfo(torch.float32).eps)
    return math.fsum(margins) / len(margins) + epsilon * abs(expected_loss)

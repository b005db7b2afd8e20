"""Budgets: how large a difference may be, derived from the noise floor and the policy.

Log-probs and gradients are budgeted directly; a gradient also carries the noise of the coefficients that the loss gives
to its completions. Rewards, margins and the loss follow from the log-prob budgets: a sum of N errors whose RMS is at
most b, weighted with c_t, is at most sqrt(N sum_t c_t^2) b (Cauchy-Schwarz), and the sigmoid loss moves by no more than
its margin does (slope at most 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from verify.comparison import Quantity
from verify.groups import PreferenceGroup
from verify.models.request import DTYPES
from verify.noise import BudgetKind, NoiseFloor
from verify.objective import DpoSigmoid, Sft
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
    """Relative noise of the coefficients d loss / d reward, which weight the gradients of a group's completions.

    For one pair c(z) = -[(1-e) sigma(-z) - e sigma(z)], so |dc| = sigma(z) sigma(-z) |dz| (derived). The margin z sums
    the errors of T tokens under policy and reference: |dz| is taken as ``coefficient_sigmas`` standard deviations of
    that sum, beta sqrt(T (b^2 + b_ref^2)), or as the witness's own error where that is larger. One number may be right
    by luck, which is why the witness's own error alone is no measure. A completion's coefficient is the sum over its
    pairs; the relative noise of a group is ||dc|| / ||c|| over its completions, which for a pair is |dc / c|.

    Args:
        kind: Distance to the oracle or to the witness.
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        objective: beta and label smoothing.
        case: Name of the case.
        noise: The noise floor of this dtype.
        policy: For the number of standard deviations.

    Returns:
        The largest relative noise over the groups.
    """
    variance = sum(
        max(noise.by_case[case, kind, quantity, ""].rms, noise.pooled_rms[kind, quantity, ""]) ** 2
        for quantity in ("per_token_logps", "ref_per_token_logps")
    )
    own = noise.by_case[case, kind, "margins", ""].max
    smoothing, largest = objective.label_smoothing, 0.0
    for group, margins in zip(groups, margins_by_group(expected.margins, groups), strict=True):
        tokens = torch.tensor(group.num_supervised, dtype=torch.float64)
        num_tokens = tokens[: len(group.positives), None] + tokens[None, len(group.positives) :]
        spreads = policy.small_sample.coefficient_sigmas * objective.beta * (num_tokens * variance).sqrt()
        up, down = torch.sigmoid(margins), torch.sigmoid(-margins)
        coefficients = (1 - smoothing) * down - smoothing * up
        noises = spreads.clamp(min=own) * up * down
        size, error = (_over_completions(values) for values in (coefficients, noises))
        largest = max(largest, error / size if size > 0 else math.inf)
    return largest


def margins_by_group(margins: Tensor, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
    """The margins of each group as a table, [positives, negatives]."""
    shapes = [(len(group.positives), len(group.negatives)) for group in groups]
    parts = torch.split(margins, [positives * negatives for positives, negatives in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _over_completions(pairs: Tensor) -> float:
    """L2 norm over the completions of a group of the sum over each one's pairs; [positives, negatives] to a number."""
    return math.sqrt(float(pairs.sum(1).square().sum() + pairs.sum(0).square().sum()))


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
    lengths = [length for group in groups for length in group.num_supervised]
    total = sum(lengths)
    epsilon = float(torch.finfo(torch.float32).eps)
    budgets = []
    for length, logps, refs in zip(lengths, expected.per_token_logps, expected.ref_per_token_logps, strict=True):
        noise = math.sqrt(length * total) * (logps_rms + ref_logps_rms)
        levels = max(1, math.ceil(math.log2(length)))
        summation = levels * epsilon * float(logps.abs().sum() + refs.abs().sum())
        budgets.append(objective.beta * (noise + summation))
    return budgets


def margin_budgets(rewards: Sequence[float], groups: Sequence[PreferenceGroup]) -> list[list[float]]:
    """Budget of each pair's margin, group by group: the sum of its two reward budgets.

    Args:
        rewards: One budget per completion.
        groups: The groups.

    Returns:
        For each group, positive by positive and negative by negative.
    """
    budgets, start = [], 0
    for group in groups:
        negatives = start + len(group.positives)
        stop = start + len(group.completions)
        budgets.append([p + n for p in rewards[start:negatives] for n in rewards[negatives:stop]])
        start = stop
    return budgets


def loss_budget(margins: Sequence[Sequence[float]], expected_loss: float) -> float:
    """Budget of a preference loss, since |d loss / d margin| <= 1: the mean over the groups of their margins' mean.

    Args:
        margins: Budgets of the margins of each group.
        expected_loss: The loss, for its float32 rounding.

    Returns:
        The budget, in nats.
    """
    epsilon = float(torch.finfo(torch.float32).eps)
    means = [math.fsum(of_group) / len(of_group) for of_group in margins]
    return math.fsum(means) / len(means) + epsilon * abs(expected_loss)


def sft_loss_budget(objective: Sft, expected: Observation, *, logps_rms: float) -> float:
    """Budget of an SFT loss, a weighted sum of log-probs: sqrt(N sum_t c_t^2) b, and the rounding of float32 sums.

    The weights c_t are 1 / N under the token mean, and under the example mean 1 / (K T) for each of the T supervised
    tokens of one of K completions (derived).

    Args:
        objective: Which mean.
        expected: The oracle's or the witness's observation.
        logps_rms: RMS budget of the log-probs, in nats.

    Returns:
        The budget, in nats.
    """
    lengths = [len(logps) for logps in expected.per_token_logps]
    total = sum(lengths)
    of_token = {
        "token": [1 / total] * len(lengths),
        "example": [1 / (len(lengths) * length) for length in lengths],
    }[objective.mean]
    squares = math.fsum(length * weight**2 for length, weight in zip(lengths, of_token, strict=True))
    sizes = math.fsum(
        weight * float(logps.abs().sum()) for weight, logps in zip(of_token, expected.per_token_logps, strict=True)
    )
    epsilon, levels = float(torch.finfo(torch.float32).eps), max(1, math.ceil(math.log2(total)))
    return math.sqrt(total * squares) * logps_rms + (levels + 1) * epsilon * sizes

"""Budgets: how large a difference may be, derived from the noise floor and the policy.

Log-probs and gradients are budgeted directly; a gradient also carries the noise of the coefficients that the loss gives
to its completions. Rewards, margins and the loss follow from the log-prob budgets: a sum of N errors whose RMS is at
most b, weighted with c_t, is at most sqrt(N sum_t c_t^2) b (Cauchy-Schwarz). Those of preference objectives are in
:mod:`verify.preference_budget`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from verify.comparison import Quantity
from verify.models.dtypes import DTYPES
from verify.noise import BudgetKind, NoiseFloor
from verify.objective import Sft
from verify.observation import Observation
from verify.precision import rounds_in
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
    shared_rounding: float = 0.0,
) -> dict[Statistic, Budget]:
    """Budget of log-probs, or of one LoRA tensor, for the maximum and for the RMS.

    budget = factor * (max(noise of this case, noise over all cases, widened for n values) + shared noise)
             + epsilons * eps(dtype) * size, widened for n values; between two log-probs + eps(float32)
             + shared rounding

    Args:
        kind: Distance to the oracle or to the witness.
        quantity: per_token_logps, ref_per_token_logps or gradients.
        part: Parameter name for gradients, else "".
        case: Name of the case.
        num_values: Number of independent values n behind the statistic: completion tokens.
        size: Size of the expected values (largest, RMS); of relative quantities (peak, 1).
        dtype_name: What the run computes in.
        noise: The noise floor of this dtype.
        policy: Factors and floors.
        peak: Largest expected value over the RMS of the expected values. Errors grow with the value, so the largest
            error over all cases is taken to be ``peak`` times their RMS where that is more than ``max_sigmas`` times.
        shared_noise: Relative noise common to all values (the coefficient of a gradient).
        shared_rounding: Relative rounding common to all values, derived and not measured (sums of log-probs in the
            coefficient of a gradient).

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
    epsilon = policy.floor.epsilons * _rounding(kind, quantity, dtype_name)
    budgets: dict[Statistic, Budget] = {}
    for statistic, (of_case, of_run) in noises.items():
        value = max(of_case, of_run) + shared_noise * (peak if statistic == "max" else 1.0)
        floor = epsilon * size[statistic] * widened
        floor += shared_rounding * (peak if statistic == "max" else 1.0)
        budgets[statistic] = Budget(
            value=factor * value + floor,
            factor=factor,
            floor=floor,
            noise=value,
            source=own.source if of_case >= of_run else f"{own.source}, pooled over the cases",
        )
    return budgets


def _rounding(kind: BudgetKind, quantity: Quantity, dtype_name: str) -> float:
    """Relative rounding of a distance between two values that are the same but for it."""
    epsilon = float(torch.finfo(DTYPES[rounds_in(dtype_name)]).eps)
    if kind == "oracle" or quantity == "gradients":
        return epsilon  # of a gradient, rounded to half an epsilon, one covers two
    # A log-softmax, of float32 at least, is off by up to an epsilon of its result: the oracle's is not, those of
    # subject and witness both are.
    return epsilon + min(epsilon, float(torch.finfo(torch.float32).eps))


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

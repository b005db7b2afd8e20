"""What a number of runs says about the rate of false alarms: an exact bound, and an extrapolation of the tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_CONFIDENCE = 0.95
_TAIL_SHARE = 0.1


def upper_bound(num_hits: int, num_runs: int) -> float:
    """Upper end of the one-sided 95 % interval for a rate (Clopper & Pearson 1934): P(hits or fewer | rate) = 5 %.

    Without a hit it is 1 - 0.05^(1/n), about 3/n. Assumes that runs are independent.

    Args:
        num_hits: Runs with a hit.
        num_runs: All runs.

    Returns:
        The bound, in [0, 1]; 1 where there are no runs.
    """
    if num_hits >= num_runs:
        return 1.0
    low, high = num_hits / num_runs, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(num_hits, num_runs, middle) > 1 - _CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _at_most(num_hits: int, num_runs: int, rate: float) -> float:
    """P(hits or fewer) of a binomial distribution."""
    if rate >= 1:
        return 0.0
    term = num_runs * math.log1p(-rate)
    total = math.exp(term)
    for hits in range(1, num_hits + 1):
        term += math.log((num_runs - hits + 1) / hits) + math.log(rate) - math.log1p(-rate)
        total += math.exp(term)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """A generalised Pareto distribution over a threshold, and what it says about values above 1.

    Args:
        threshold: What a tenth of the values exceed.
        num_beyond: How many do.
        scale: sigma.
        shape: xi; 0 is an exponential tail, below 0 there is a largest value.
        rate_pareto: P(value > 1) with that shape.
        rate_exponential: P(value > 1) with an exponential tail of the same mean excess.
    """

    threshold: float
    num_beyond: int
    scale: float
    shape: float
    rate_pareto: float
    rate_exponential: float


def fit_tail(values: Sequence[float]) -> Tail | None:
    """Fit the largest tenth of the values by probability-weighted moments (Hosking & Wallis 1987).

    With b0 the mean excess and b1 the mean of excess times (1 - rank / n): xi = 2 - b0 / (b0 - 2 b1),
    sigma = 2 b0 b1 / (b0 - 2 b1).

    Args:
        values: Independent values.

    Returns:
        The fit, or None where fewer than ten values are beyond the threshold, or all of them are equal.
    """
    ordered = sorted(values)
    num_beyond = math.floor(_TAIL_SHARE * len(ordered))
    if num_beyond < 10 or not math.isfinite(ordered[-1]):
        return None
    threshold = ordered[-num_beyond - 1]
    excesses = [value - threshold for value in ordered[-num_beyond:]]
    mean = math.fsum(excesses) / num_beyond
    weighted = (
        math.fsum(excess * (1 - (rank - 0.35) / num_beyond) for rank, excess in enumerate(excesses, start=1))
        / num_beyond
    )
    if not mean > 2 * weighted > 0:
        return None
    shape = 2 - mean / (mean - 2 * weighted)
    scale = 2 * mean * weighted / (mean - 2 * weighted)
    share, distance = num_beyond / len(ordered), 1 - threshold
    return Tail(
        threshold=threshold,
        num_beyond=num_beyond,
        scale=scale,
        shape=shape,
        rate_pareto=share * _survival(distance, scale, shape),
        rate_exponential=share * (math.exp(-distance / mean) if distance > 0 else 1.0),
    )


def _survival(distance: float, scale: float, shape: float) -> float:
    if distance <= 0:
        return 1.0
    if abs(shape) < 1e-9:
        return math.exp(-distance / scale)
    inside = 1 + shape * distance / scale
    return inside ** (-1 / shape) if inside > 0 else 0.0

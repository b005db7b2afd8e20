"""What raw step times and peaks amount to: medians, quartiles, a ratio with its interval, memory summed over ranks.

Functions on plain arrays, one row for a step and one column for a rank where there are ranks. A step is over when the
slowest rank is, so its time is the largest over ranks; memory is summed, since every rank's has to be paid for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 10_000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it (linear interpolation between order statistics)."""

    median: float
    lower_quartile: float
    upper_quartile: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two medians, and an interval of 95 % for it.

    Args:
        value: Median of the numerator / median of the denominator.
        low: Lower end of the interval.
        high: Upper end.
    """

    value: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles.

    Raises:
        ValueError: No value, or one that is not finite.
    """
    lower, median, upper = np.quantile(_checked(values), (0.25, 0.5, 0.75))
    return Spread(float(median), float(lower), float(upper))


def step_times(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """The time of each step: that of its slowest rank.

    Args:
        by_rank: [steps][ranks].
    """
    return [max(ranks) for ranks in by_rank]


def rank_summed_peak(by_rank: Sequence[Sequence[int]]) -> int:
    """Rank-summed memory: for each step the sum over ranks of each one's peak within it; then the largest over steps.

    The peaks of a step need not coincide in time. The largest sum is not the sum of the largest: of two ranks with
    peaks 3 and 1 in one step, 1 and 2 in another, it is 4, not 5.

    Args:
        by_rank: [steps][ranks], bytes.

    Raises:
        ValueError: No step, or steps of unequal numbers of ranks.
    """
    if not by_rank or not by_rank[0] or len({len(ranks) for ranks in by_rank}) > 1:
        raise ValueError(f"peaks of {sorted({len(ranks) for ranks in by_rank})} ranks: expected the same number, not 0")
    return max(sum(ranks) for ranks in by_rank)


def ratio_of_medians(numerator: Sequence[float], denominator: Sequence[float], *, seed: int) -> Ratio:
    """The ratio of two medians with a bootstrap interval (percentiles; Efron 1979).

    Steps of one index ran side by side on one batch, so they are drawn together: what slowed both down, or a batch that
    is long for both, does not widen the interval.

    Args:
        numerator: Step times, positive.
        denominator: As many, of the same rounds.
        seed: Seed of the resampling.

    Returns:
        The ratio. Of very few steps the interval is coarse: it can hold no ratio that no resample has.

    Raises:
        ValueError: Different numbers of steps, none, or a time that is not positive and finite.
    """
    above, below = _checked(numerator), _checked(denominator)
    if len(above) != len(below):
        raise ValueError(f"{len(above)} steps over {len(below)}: expected one of each in every round")
    if min(above.min(), below.min()) <= 0:
        raise ValueError("a step time of 0 or less: durations are above 0")
    drawn = np.random.default_rng(seed).integers(len(above), size=(RESAMPLES, len(above)))
    ratios = np.median(above[drawn], axis=1) / np.median(below[drawn], axis=1)
    low, high = np.quantile(ratios, ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2))
    return Ratio(float(np.median(above) / np.median(below)), float(low), float(high))


def _checked(values: Sequence[float]) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        raise ValueError("no value: a median needs at least one")
    if not np.isfinite(array).all():
        raise ValueError("a value that is not finite: nothing can be said about its median")
    return array

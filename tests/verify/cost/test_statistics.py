"""Medians, quartiles, ratios and rank-summed memory, against other ways to the same numbers."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.cost.statistics import rank_summed_peak, ratio_of_medians, spread, step_times

TIMES = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=30)


@given(TIMES)
def test_median_and_quartiles_are_those_of_the_standard_library(times: list[float]) -> None:
    lower, median, upper = statistics.quantiles(times, n=4, method="inclusive")
    found = spread(times)
    assert (found.lower_quartile, found.median, found.upper_quartile) == pytest.approx((lower, median, upper))


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    assert step_times([[1.0, 3.0], [2.0, 1.5]]) == [3.0, 2.0]


def test_rank_summed_memory_is_the_largest_sum_and_not_the_sum_of_the_largest() -> None:
    assert rank_summed_peak([[3, 1], [1, 2]]) == 4


@given(st.lists(st.lists(st.integers(0, 2**40), min_size=3, max_size=3), min_size=1, max_size=20))
def test_rank_summed_memory_by_array(peaks: list[list[int]]) -> None:
    assert rank_summed_peak(peaks) == np.array(peaks).sum(axis=1).max()


@pytest.mark.parametrize("peaks", [[], [[]], [[1, 2], [3]]])
def test_memory_of_no_step_or_of_another_number_of_ranks_is_refused(peaks: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="expected the same number, not 0"):
        rank_summed_peak(peaks)


def test_the_interval_is_that_of_all_resamples() -> None:
    """Of three rounds there are 27 resamples; ten thousand drawn ones have their quantiles."""
    above, below = [2.0, 3.0, 7.0], [4.0, 5.0, 6.0]
    ratios = [
        statistics.median(above[i] for i in drawn) / statistics.median(below[i] for i in drawn)
        for drawn in itertools.product(range(3), repeat=3)
    ]
    found = ratio_of_medians(above, below, seed=0)
    assert found.value == 3 / 5
    assert (found.low, found.high) == (min(ratios), max(ratios))  # each has 7 of 27, more than the tails
    assert sum(ratio == min(ratios) for ratio in ratios) / 27 == 7 / 27


def test_what_slows_a_whole_round_down_does_not_widen_the_interval() -> None:
    slow = [1.0, 1.0, 9.0, 1.0, 4.0, 1.0]
    found = ratio_of_medians([0.7 * s for s in slow], slow, seed=3)
    assert (found.low, found.high) == pytest.approx((0.7, 0.7))


def test_the_interval_holds_the_ratio_it_is_of_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    held = 0
    for seed in range(60):
        above, below = generator.lognormal(np.log(0.8), 0.1, 15), generator.lognormal(0.0, 0.1, 15)
        found = ratio_of_medians(above.tolist(), below.tolist(), seed=seed)
        held += found.low <= 0.8 <= found.high
    assert 52 <= held <= 60


def test_the_same_seed_gives_the_same_interval() -> None:
    generator = np.random.default_rng(6)
    above, below = (generator.lognormal(0.0, 0.3, 40).tolist() for _ in range(2))
    first, again = (ratio_of_medians(above, below, seed=4) for _ in range(2))
    assert first == again
    assert first != ratio_of_medians(above, below, seed=5)


@pytest.mark.parametrize(
    ("above", "below", "message"),
    [
        ([], [], "no value"),
        ([1.0], [1.0, 2.0], "1 steps over 2"),
        ([1.0, 0.0], [1.0, 1.0], "durations are above 0"),
        ([1.0, float("nan")], [1.0, 1.0], "not finite"),
    ],
)
def test_what_is_no_series_of_step_times_is_refused(above: list[float], below: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ratio_of_medians(above, below, seed=0)

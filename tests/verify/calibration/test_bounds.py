"""Bounds against values from tables and from distributions whose tail is known."""

from __future__ import annotations

import math
import random

import pytest

from verify.calibration.bounds import fit_tail, upper_bound


@pytest.mark.parametrize(
    ("hits", "runs", "bound"),
    [
        (0, 1, 0.95),
        (0, 10, 1 - 0.05**0.1),
        (0, 1000, 0.0029912),  # the rule of three
        (1, 10, 0.39416),  # Clopper & Pearson's table, upper end, 5 % on one side
        (5, 10, 0.77756),
        (10, 10, 1.0),
        (0, 0, 1.0),
    ],
)
def test_the_bound_is_that_of_clopper_and_pearson(hits: int, runs: int, bound: float) -> None:
    assert upper_bound(hits, runs) == pytest.approx(bound, rel=1e-4)


def test_a_true_rate_is_below_the_bound_in_95_of_100_samples() -> None:
    rng, rate, runs = random.Random(0), 0.03, 60
    covered = sum(upper_bound(sum(rng.random() < rate for _ in range(runs)), runs) >= rate for _ in range(2000))
    assert covered / 2000 > 0.94


def test_an_exponential_tail_is_found() -> None:
    """P(x > 1) = exp(-10)."""
    rng = random.Random(1)
    tail = fit_tail([rng.expovariate(10) for _ in range(20_000)])
    assert tail is not None
    assert abs(tail.shape) < 0.05
    assert tail.num_beyond == 2000
    assert tail.rate_exponential == pytest.approx(math.exp(-10), rel=0.5)
    assert tail.rate_pareto == pytest.approx(math.exp(-10), rel=3)


def test_a_heavy_tail_is_found_where_an_exponential_one_would_be_too_hopeful() -> None:
    """P(x > 1) = 0.05^4 = 6.25e-6."""
    rng = random.Random(2)
    tail = fit_tail([0.05 * rng.paretovariate(4) for _ in range(20_000)])
    assert tail is not None
    assert tail.shape == pytest.approx(0.25, abs=0.08)
    assert 0.05**4 / 4 < tail.rate_pareto < 0.05**4 * 4
    assert tail.rate_exponential < 1e-9


def test_a_tail_that_ends_before_one_never_reaches_it() -> None:
    rng = random.Random(3)
    tail = fit_tail([0.8 * rng.random() for _ in range(2000)])
    assert tail is not None
    assert tail.shape == pytest.approx(-1, abs=0.2)
    assert tail.rate_pareto == 0.0
    assert 0 < tail.rate_exponential < 0.1


@pytest.mark.parametrize("values", [[], [0.1] * 99, [0.1] * 500, [0.1] * 499 + [math.inf]])
def test_nothing_is_fitted_to_too_few_or_equal_or_infinite_values(values: list[float]) -> None:
    assert fit_tail(values) is None


def test_values_beyond_one_count_as_they_are() -> None:
    tail = fit_tail([2 + i / 100 for i in range(200)])
    assert tail is not None
    assert tail.rate_pareto == tail.rate_exponential == pytest.approx(0.1)

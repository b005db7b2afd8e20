from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.data.length_statistics import LengthHistogram, Reservoir

some_lengths = st.lists(st.integers(1, 100_000), min_size=1, max_size=60)


def histogram(lengths: list[int]) -> LengthHistogram:
    made = LengthHistogram()
    for at in range(0, len(lengths), 7):
        made.add(np.array(lengths[at : at + 7]))
    return made


@given(some_lengths)
def test_every_length_lies_in_the_bin_that_counts_it(lengths: list[int]) -> None:
    bins = histogram(lengths).bins()
    for least, greatest, count in bins:
        assert count == sum(least <= length <= greatest for length in lengths)
    assert sum(count for _, _, count in bins) == len(lengths)


@given(some_lengths)
def test_sum_and_ends_are_exact(lengths: list[int]) -> None:
    made = histogram(lengths)
    assert (made.total, made.num_lengths) == (sum(lengths), len(lengths))
    assert (made.shortest, made.longest) == (min(lengths), max(lengths))


@given(some_lengths, st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_is_reached_and_at_most_a_bin_too_long(lengths: list[int], share: float) -> None:
    found = histogram(lengths).quantile(share)
    exact = int(np.quantile(lengths, share, method="inverted_cdf"))
    assert exact <= found <= max(exact, exact * 2 ** (1 / 8) + 1)
    if exact < 32:
        assert found == exact


def test_no_length_has_no_quantile() -> None:
    with pytest.raises(ValueError, match="no length was counted"):
        LengthHistogram().quantile(0.5)


def sample_of(num_rows: int, seed: int, capacity: int = 20) -> list[int]:
    reservoir: Reservoir[int] = Reservoir(capacity, seed)
    for at in range(0, num_rows, 13):
        reservoir.add(range(at, min(at + 13, num_rows)))
    return reservoir.sample()


def test_few_rows_are_all_kept() -> None:
    assert sample_of(15, seed=0) == list(range(15))
    assert sample_of(20, seed=0) == list(range(20))


def test_the_sample_is_in_order_without_repetition_and_the_seeds_own() -> None:
    sample = sample_of(500, seed=3)
    assert sample == sorted(set(sample))
    assert len(sample) == 20
    assert sample == sample_of(500, seed=3) != sample_of(500, seed=4)


def test_every_row_is_as_likely_to_be_kept() -> None:
    """Each of 100 rows is kept with probability 0.2: over 2000 seeds 400 times, give or take five deviations of 18."""
    counts = Counter(row for seed in range(2000) for row in sample_of(100, seed))
    assert set(counts) == set(range(100))
    assert max(abs(count - 400) for count in counts.values()) < 90

"""The sample: one from each stratum of length, and the same one for the same seed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify.data.rows import DataError
from verify.data.sample import stratified_sample


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.data())
def test_each_stratum_of_length_gives_exactly_one(num_tokens: list[int], data: st.DataObject) -> None:
    num_pairs = data.draw(st.integers(1, len(num_tokens)), label="num_pairs")
    drawn = stratified_sample(num_tokens, num_pairs, data.draw(st.integers(0, 99), label="seed"))
    assert len(set(drawn)) == num_pairs
    assert list(drawn) == sorted(drawn)
    # Found by rank: the k-th shortest drawn item lies in the k-th of num_pairs equal parts of the ranking.
    ranking = [i for _, i in sorted((length, i) for i, length in enumerate(num_tokens))]
    ranks = sorted(ranking.index(i) for i in drawn)
    for k, rank in enumerate(ranks):
        first = k * len(ranking) // num_pairs
        last = (k + 1) * len(ranking) // num_pairs - 1
        assert first <= rank <= last


def test_the_seed_decides_the_sample() -> None:
    num_tokens = [(i * 37) % 101 for i in range(100)]
    assert stratified_sample(num_tokens, 10, seed=3) == stratified_sample(num_tokens, 10, seed=3)
    assert len({stratified_sample(num_tokens, 10, seed) for seed in range(20)}) == 20


def test_every_item_of_a_stratum_can_be_drawn() -> None:
    drawn = {i for seed in range(100) for i in stratified_sample([30, 10, 20, 90, 70, 80], 2, seed)}
    assert drawn == set(range(6))


def test_all_pairs_are_drawn_when_as_many_are_asked_for() -> None:
    assert stratified_sample([5, 3, 4], 3, seed=0) == (0, 1, 2)


@pytest.mark.parametrize(
    ("num_pairs", "message"),
    [(0, "0 pairs asked for: expected at least 1"), (4, "4 pairs asked for, but only 3 are usable")],
)
def test_an_impossible_sample_is_refused(num_pairs: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        stratified_sample([1, 2, 3], num_pairs, seed=0)

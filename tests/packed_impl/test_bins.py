from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packed_impl.bins import (
    GroupDoesNotFit,
    batches_in_order,
    first_fit_decreasing,
    length_bucketed_batches,
    length_sorted_batches,
    packed_length,
)

LIMIT = 12
lengths_that_fit = st.lists(st.integers(1, LIMIT), min_size=1, max_size=40)


def quadratic_first_fit_decreasing(lengths: list[int], limit: int) -> list[set[int]]:
    """As in a textbook: look at every open row, in the order of opening."""
    rows: list[set[int]] = []
    for _, index in sorted((-length, index) for index, length in enumerate(lengths)):
        for row in rows:
            if sum(lengths[i] for i in row) + lengths[index] <= limit:
                row.add(index)
                break
        else:
            rows.append({index})
    return rows


@given(lengths_that_fit)
def test_rows_are_those_of_the_textbook(lengths: list[int]) -> None:
    rows = first_fit_decreasing(lengths, LIMIT)
    assert [set(row) for row in rows] == quadratic_first_fit_decreasing(lengths, LIMIT)


@given(lengths_that_fit)
def test_every_group_is_in_exactly_one_row_and_no_row_is_over_the_limit(lengths: list[int]) -> None:
    rows = first_fit_decreasing(lengths, LIMIT)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in row) <= LIMIT for row in rows)


@given(lengths_that_fit, st.randoms(use_true_random=False))
def test_another_order_of_the_groups_fills_rows_alike(lengths: list[int], rng: random.Random) -> None:
    """Only groups of one length change places."""
    shuffled = rng.sample(lengths, len(lengths))
    filled = [
        [sorted(of[index] for index in row) for row in first_fit_decreasing(of, LIMIT)] for of in (lengths, shuffled)
    ]
    assert filled[0] == filled[1]


def test_rows_do_not_depend_on_the_run() -> None:
    lengths = [random.Random(1).randint(1, LIMIT) for _ in range(200)]
    code = f"from packed_impl.bins import *; print(first_fit_decreasing({lengths}, {LIMIT}))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert runs == {f"{first_fit_decreasing(lengths, LIMIT)}\n"}


def test_ties_go_by_index() -> None:
    assert first_fit_decreasing([4, 4, 4], 8) == ((0, 1), (2,))


def test_a_group_that_does_not_fit_is_one_error_that_names_it_and_the_limit() -> None:
    with pytest.raises(GroupDoesNotFit, match="group 1 takes 13 slots, more than the row limit of 12"):
        first_fit_decreasing([3, 13, 12], LIMIT)
    with pytest.raises(GroupDoesNotFit, match=r"^pairs\.jsonl:7 takes 13 slots"):
        first_fit_decreasing([3, 13], LIMIT, names=["pairs.jsonl:6", "pairs.jsonl:7"])


@pytest.mark.parametrize("lengths", [[], [3, 0], [-1]])
def test_nothing_and_empty_groups_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        first_fit_decreasing(lengths, LIMIT)


@pytest.mark.parametrize(
    ("layout", "expected"),
    # prompt a b, responses c | d e: "a b c d e", or "a", "b c", "b d e".
    [("shared-prompt", 5), ("repeat-prompt-token", 6), ("block-diagonal", 7), ("prefix-tree", 5)],
)
def test_packed_length_counts_slots(layout: str, expected: int) -> None:
    assert packed_length(2, [1, 2], layout=layout) == expected


# Batches of like length.

batch_inputs = st.lists(st.integers(1, 30), min_size=1, max_size=30).flatmap(
    lambda lengths: st.tuples(st.just(lengths), st.permutations(range(len(lengths))), st.integers(1, 7))
)


@given(batch_inputs)
def test_every_item_is_in_exactly_one_batch(inputs: tuple[list[int], list[int], int]) -> None:
    lengths, order, size = inputs
    for batches in (
        batches_in_order(order, size),
        length_sorted_batches(order, lengths, size),
        length_bucketed_batches(order, lengths, size, [5, 10]),
    ):
        assert sorted(item for batch in batches for item in batch) == list(range(len(lengths)))
        assert all(1 <= len(batch) <= size for batch in batches)
        assert len(batches) == -(-len(lengths) // size)


@given(batch_inputs)
def test_sorted_batches_do_not_overlap_in_length(inputs: tuple[list[int], list[int], int]) -> None:
    lengths, order, size = inputs
    batches = length_sorted_batches(order, lengths, size)
    for shorter, longer in pairwise(batches):
        assert max(lengths[i] for i in shorter) <= min(lengths[i] for i in longer)


@given(batch_inputs)
def test_full_batches_of_a_bucket_stay_within_its_bounds(inputs: tuple[list[int], list[int], int]) -> None:
    lengths, order, size = inputs
    buckets = [[i for i in order if low < lengths[i] <= high] for low, high in ((0, 5), (5, 10), (10, 99))]
    complete = sum(len(bucket) // size for bucket in buckets)
    batches = length_bucketed_batches(order, lengths, size, [5, 10])
    for batch in batches[:complete]:
        assert any(set(batch) <= set(bucket) for bucket in buckets)
        assert len(batch) == size


def test_bounds_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(ValueError, match="expected ascending"):
        length_bucketed_batches([0], [1], 1, [5, 5])

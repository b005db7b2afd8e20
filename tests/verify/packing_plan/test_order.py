from __future__ import annotations

from itertools import combinations
from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from verify.packing_plan.order import check_order, sampling_order


def test_the_order_is_a_permutation_that_the_seed_decides() -> None:
    assert sorted(sampling_order(50, 3)) == list(range(50))
    assert sampling_order(50, 3) == sampling_order(50, 3) != sampling_order(50, 4)


@given(st.permutations(range(12)), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_the_distance_is_that_of_all_pairs_in_a_row(positions: list[int], sizes: list[int]) -> None:
    rows, rest = [], list(positions)
    for size in sizes:
        rows.append(rest[:size])
        rest = rest[size:]
    rows = [row for row in rows if row]
    distances = [abs(a - b) for row in rows for a, b in combinations(row, 2)]
    check = check_order(rows, seed=0)
    if not distances:
        assert check is None
        return
    assert check is not None
    assert check.num_pairs == len(distances)
    assert abs(check.mean_distance - mean(distances)) < 1e-9


def test_rows_filled_in_file_order_are_found() -> None:
    check = check_order([range(at, at + 4) for at in range(0, 400, 4)], seed=0)
    assert check is not None
    assert check.follows_dataset_order


def test_rows_filled_in_shuffled_order_are_not() -> None:
    for seed in range(20):
        order = sampling_order(400, seed)
        check = check_order([order[at : at + 4] for at in range(0, 400, 4)], seed=seed)
        assert check is not None
        assert not check.follows_dataset_order


def test_groups_of_one_length_come_in_file_order_unless_shuffled() -> None:
    """What first-fit decreasing does to a data set whose lengths are all the same."""
    from verify.subjects.bins import first_fit_decreasing

    rows = first_fit_decreasing([5] * 300, 20)
    unshuffled = check_order(rows, seed=0)
    order = sampling_order(300, 0)
    shuffled = check_order([[order[item] for item in row] for row in rows], seed=0)
    assert unshuffled is not None
    assert shuffled is not None
    assert unshuffled.follows_dataset_order
    assert not shuffled.follows_dataset_order

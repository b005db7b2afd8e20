from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packed_impl.forest import attention_rule, positions, predictors
from packed_impl.prefix_tree import PrefixForest, num_prefix_slots, prefix_forest

Sequences = list[tuple[int, ...]]
# Three tokens only, so that prefixes are shared, equal sequences come up, and one sequence begins another.
any_sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple), min_size=1, max_size=9)


def slots_of(tree: PrefixForest, sequence: int, first: int = 0) -> list[int]:
    return [slot for start, length in tree.slot_runs(sequence, first) for slot in range(start, start + length)]


def prefixes(sequences: Sequences) -> set[tuple[int, ...]]:
    return {ids[:length] for ids in sequences for length in range(1, len(ids) + 1)}


@given(any_sequences)
def test_every_sequence_is_a_path_that_spells_it(sequences: Sequences) -> None:
    tree = prefix_forest(sequences)
    position = positions(tree.forest).tolist()
    for number, ids in enumerate(sequences):
        slots = slots_of(tree, number)
        assert tuple(tree.token_ids[slot] for slot in slots) == ids
        assert [position[slot] for slot in slots] == list(range(len(ids)))
        assert [predictors(tree.forest)[slot] for slot in slots] == [None, *slots[:-1]]


@given(any_sequences)
def test_a_token_attends_to_its_own_sequence_so_far_and_to_nothing_else(sequences: Sequences) -> None:
    tree = prefix_forest(sequences)
    rule = attention_rule(tree.forest)
    for number in range(len(sequences)):
        slots = slots_of(tree, number)
        for place, slot in enumerate(slots):
            assert rule[slot].nonzero()[:, 0].tolist() == sorted(slots[: place + 1])


@given(any_sequences)
def test_there_is_one_slot_for_each_distinct_prefix(sequences: Sequences) -> None:
    tree = prefix_forest(sequences)
    assert len(tree.token_ids) == tree.forest.num_slots == len(prefixes(sequences))
    held = {ids[: place + 1]: slot for n, ids in enumerate(sequences) for place, slot in enumerate(slots_of(tree, n))}
    assert sorted(held.values()) == list(range(tree.forest.num_slots))


@given(any_sequences)
def test_segments_end_only_where_sequences_part(sequences: Sequences) -> None:
    """Children begin with different tokens, and none is the only child."""
    tree = prefix_forest(sequences)
    starts: dict[int | None, list[int]] = {}
    for segment in tree.forest.segments:
        starts.setdefault(segment.parent, []).append(tree.token_ids[segment.start])
    assert all(len(set(tokens)) == len(tokens) for tokens in starts.values())
    assert all(len(tokens) > 1 for parent, tokens in starts.items() if parent is not None)


@given(any_sequences)
def test_slots_come_depth_first_in_order_of_first_appearance(sequences: Sequences) -> None:
    """Sort all prefixes by when each of their tokens' prefixes first appears: that is the row."""
    first_seen: dict[tuple[int, ...], int] = {}
    for ids in sequences:
        for length in range(1, len(ids) + 1):
            first_seen.setdefault(ids[:length], len(first_seen))
    ordered = sorted(first_seen, key=lambda prefix: [first_seen[prefix[:n]] for n in range(1, len(prefix) + 1)])
    assert prefix_forest(sequences).token_ids == tuple(prefix[-1] for prefix in ordered)


@given(any_sequences, st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_changes_the_row_but_not_what_is_shared(
    sequences: Sequences, rng: random.Random
) -> None:
    tree, other = prefix_forest(sequences), prefix_forest(rng.sample(sequences, len(sequences)))
    assert sorted(s.length for s in tree.forest.segments) == sorted(s.length for s in other.forest.segments)
    assert prefix_forest(sequences) == tree


@given(any_sequences, any_sequences)
def test_slots_are_counted_without_a_tree_and_never_add_up_to_less(first: Sequences, second: Sequences) -> None:
    assert num_prefix_slots(first) == len(prefixes(first))
    assert num_prefix_slots(first + second) <= num_prefix_slots(first) + num_prefix_slots(second)


def test_a_sequence_that_parts_later_belongs_to_the_first_tree() -> None:
    tree = prefix_forest([(1, 2), (3,), (1, 4)])
    assert tree.token_ids == (1, 2, 4, 3)
    assert [segment.parent for segment in tree.forest.segments] == [None, 0, 0, None]
    assert tree.paths == ((0, 1), (3,), (0, 2))


def test_a_sequence_that_begins_another_needs_no_segment() -> None:
    for sequences in ([(1, 2), (1, 2, 3), (1,)], [(1, 2, 3), (1,), (1, 2)]):
        tree = prefix_forest(sequences)
        assert tree.token_ids == (1, 2, 3)
        assert len(tree.forest.segments) == 1
        assert [slots_of(tree, n) for n in range(3)] == [list(range(len(ids))) for ids in sequences]


def test_equal_sequences_are_one_path() -> None:
    tree = prefix_forest([(5, 6), (5, 6), (5, 7)])
    assert tree.token_ids == (5, 6, 7)
    assert tree.paths[0] == tree.paths[1] == (0, 1)


def test_a_sequence_of_one_token_may_be_a_root() -> None:
    tree = prefix_forest([(5,), (6,), (5,)])
    assert tree.token_ids == (5, 6)
    assert [segment.parent for segment in tree.forest.segments] == [None, None]


def test_runs_start_at_the_token_asked_for() -> None:
    tree = prefix_forest([(1, 2, 3, 4), (1, 2, 5)])
    assert tree.slot_runs(1) == [(0, 2), (4, 1)]
    assert tree.slot_runs(1, first=1) == [(1, 1), (4, 1)]
    assert tree.slot_runs(1, first=2) == [(4, 1)]


def test_5000_nested_prefixes_are_one_segment() -> None:
    ids = tuple(range(5000))
    tree = prefix_forest([ids[:length] for length in range(1, 5001)])
    assert tree.token_ids == ids
    assert len(tree.forest.segments) == 1
    assert tree.slot_runs(2499) == [(0, 2500)]


def test_a_tree_deeper_than_python_recurses_is_built() -> None:
    """``1``, ``0 1``, ``0 0 1``, ...: each sequence parts from the longer ones one segment further down."""
    depth = 1050
    tree = prefix_forest([*((0,) * above + (1,) for above in range(depth))])
    assert tree.forest.num_slots == 2 * depth - 1
    assert max(map(len, tree.paths)) == depth - 1  # the longest ends in a segment of two
    assert positions(tree.forest).max() == depth - 1


def test_nothing_and_empty_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="no sequence for a prefix tree"):
        prefix_forest([])
    with pytest.raises(ValueError, match="sequence 1 is empty"):
        prefix_forest([(1,), ()])

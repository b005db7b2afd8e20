from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packed_impl.forest import Forest, Segment, attention_rule, padded, positions, predictors, segment_ids


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    parents = [draw(st.none() | st.integers(0, index - 1)) if index else None for index in range(len(lengths))]
    return Forest.of(lengths, parents)


def slots_on_path(forest: Forest, slot: int) -> list[int]:
    """The slots of a token's own sequence, from the root up to itself: walk up, segment by segment."""
    index = next(
        i for i, segment in enumerate(forest.segments) if segment.start <= slot < segment.start + segment.length
    )
    segment = forest.segments[index]
    slots = list(range(segment.start, slot + 1))
    while segment.parent is not None:
        segment = forest.segments[segment.parent]
        slots = [*range(segment.start, segment.start + segment.length), *slots]
    return slots


@given(forests())
def test_a_slot_attends_to_exactly_the_slots_of_its_path_up_to_itself(forest: Forest) -> None:
    expected = torch.zeros(forest.num_slots, forest.num_slots, dtype=torch.bool)
    for slot in range(forest.num_slots):
        expected[slot, slots_on_path(forest, slot)] = True
    assert torch.equal(attention_rule(forest), expected)


@given(forests(), st.integers(1, 8))
def test_a_window_leaves_the_last_slots_of_the_path(forest: Forest, window: int) -> None:
    expected = torch.zeros(forest.num_slots, forest.num_slots, dtype=torch.bool)
    for slot in range(forest.num_slots):
        expected[slot, slots_on_path(forest, slot)[-window:]] = True
    assert torch.equal(attention_rule(forest, window), expected)


@given(forests())
def test_a_position_counts_the_tokens_before_it_on_its_path(forest: Forest) -> None:
    assert positions(forest).tolist() == [len(slots_on_path(forest, slot)) - 1 for slot in range(forest.num_slots)]


@given(forests())
def test_a_predictor_is_the_predecessor_on_the_path(forest: Forest) -> None:
    expected = []
    for slot in range(forest.num_slots):
        path = slots_on_path(forest, slot)
        expected.append(path[-2] if len(path) > 1 else None)
    assert list(predictors(forest)) == expected


@given(forests(), st.integers(1, 5))
def test_padding_sees_only_itself_and_nothing_sees_it(forest: Forest, extra: int) -> None:
    rule = attention_rule(padded(forest, forest.num_slots + extra))
    assert not rule[: forest.num_slots, forest.num_slots :].any()
    assert not rule[forest.num_slots :, : forest.num_slots].any()
    assert rule.diagonal().all()
    assert torch.equal(rule[: forest.num_slots, : forest.num_slots], attention_rule(forest))


def test_a_pair_is_one_root_with_two_children() -> None:
    pair = Forest.of([2, 1, 2], [None, 0, 0])
    assert positions(pair).tolist() == [0, 1, 2, 2, 3]
    assert predictors(pair) == (None, 0, 1, 1, 3)
    assert segment_ids(pair).tolist() == [0, 0, 1, 2, 2]
    assert pair.path(2) == (0, 2)
    assert attention_rule(pair)[3].tolist() == [True, True, False, True, False]
    assert attention_rule(pair, window=2)[3].tolist() == [False, True, False, True, False]


def test_a_path_of_5000_segments_is_walked() -> None:
    forest = Forest.of([1] * 5000, [None, *range(4999)])
    assert forest.path(4999) == tuple(range(5000))
    assert positions(forest).tolist() == list(range(5000))


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((), "at least one segment"),
        ((Segment(0, 2), Segment(2, 0)), "length 0"),
        ((Segment(0, 2), Segment(3, 1)), "starts at slot 3: expected slot 2"),
        ((Segment(0, 2), Segment(1, 1)), "starts at slot 1: expected slot 2"),
        ((Segment(0, 2, parent=0),), "parent 0: a parent comes before its child.* the first segment has none"),
        ((Segment(0, 2, parent=1), Segment(2, 1)), "segment 0 has parent 1: a parent comes before its child"),
        (
            (Segment(0, 2), Segment(2, 1, parent=2), Segment(3, 1, parent=1)),
            "rules cycles out; expected one of 0 to 0",
        ),
        ((Segment(0, 2), Segment(2, 1, parent=-1)), "parent -1: a parent comes before its child"),
    ],
)
def test_what_is_no_forest_is_refused(segments: tuple[Segment, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Forest(segments)


def test_lengths_and_parents_come_in_equal_numbers() -> None:
    with pytest.raises(ValueError, match="zip"):
        Forest.of([1, 2], [None])


def test_a_row_cannot_be_padded_shorter() -> None:
    with pytest.raises(ValueError, match="row of 3 slots to 2"):
        padded(Forest.of([3], [None]), 2)

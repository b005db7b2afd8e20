"""What prefix trees hold: against every distinct prefix listed, and against the rows that the packed layout feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packed_impl.forest import attention_rule
from packed_impl.layout import pack
from packed_impl.prefix_tree import prefix_forest
from verify.packing_plan.costs import NO_WORK, Work
from verify.packing_plan.order import sampling_order
from verify.packing_plan.prefix_trees import (
    ALONE,
    GROUP_TREES,
    ONE_TREE,
    ROW_TREES,
    SHARED_PROMPTS,
    TokenGroup,
    counted_works,
    tree_work,
)
from verify.subjects.bins import GroupDoesNotFit, first_fit_decreasing

TokenIds = tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """What the packed layout takes."""

    prompt_ids: TokenIds
    positives: tuple[TokenIds, ...]
    negatives: tuple[TokenIds, ...]
    completion_masks: tuple[tuple[bool, ...], ...] = ()
    images: tuple[()] = ()

    @property
    def sequences(self) -> list[TokenIds]:
        return [self.prompt_ids + response for response in self.positives + self.negatives]

    @property
    def held(self) -> TokenGroup:
        return TokenGroup.of(self.prompt_ids, self.positives + self.negatives)


# Two tokens that differ in their first byte alone, and two that differ in their last: few, so that much is shared.
ids = st.lists(st.sampled_from([1, 2, 2**24 + 1]), min_size=1, max_size=5).map(tuple)
sides = st.lists(ids, min_size=1, max_size=3).map(tuple)
some_groups = st.lists(st.builds(Group, ids, sides, sides), min_size=1, max_size=6)


def prefixes(sequences: Sequence[TokenIds]) -> set[TokenIds]:
    return {sequence[:stop] for sequence in sequences for stop in range(1, len(sequence) + 1)}


@given(some_groups)
def test_a_tree_has_a_token_for_each_distinct_prefix(groups: list[Group]) -> None:
    distinct = prefixes([sequence for group in groups for sequence in group.sequences])
    num_response_tokens = sum(len(response) for group in groups for response in group.positives + group.negatives)
    expected = Work(len(distinct), sum(map(len, distinct)), num_response_tokens)
    assert tree_work([group.held for group in groups]) == expected


@given(some_groups, st.integers(0, 30), st.integers(0, 2))
def test_each_way_is_what_the_packed_layout_feeds(groups: list[Group], room: int, seed: int) -> None:
    held = [group.held for group in groups]
    row_limit = max(group.lengths.packed for group in held) + room
    works = counted_works(held, row_limit, seed)
    order = sampling_order(len(groups), seed)
    filled = first_fit_decreasing([held[position].lengths.packed for position in order], row_limit)
    rows = [[order[item] for item in row] for row in filled]
    for way, layout, together in (
        (ALONE, "block-diagonal", "row-per-group"),
        (SHARED_PROMPTS, "shared-prompt", "row-per-group"),
        (GROUP_TREES, "prefix-tree", "row-per-group"),
        (ROW_TREES, "prefix-tree", rows),
        (ONE_TREE, "prefix-tree", "one-row"),
    ):
        packed = pack(groups, layout=layout, rows=together)
        unpadded = [_without_padding(groups, indices, layout) for indices in _rows(together, len(groups))]
        assert works[way].tokens == sum(tokens for tokens, _ in unpadded)
        assert works[way].pairs == sum(pairs for _, pairs in unpadded)
        assert works[way].predictors == len(packed.predictor_slots)


def _rows(rows: str | list[list[int]], num_groups: int) -> Sequence[Sequence[int]]:
    if isinstance(rows, str):
        return [range(num_groups)] if rows == "one-row" else [[index] for index in range(num_groups)]
    return rows


def _without_padding(groups: list[Group], indices: Sequence[int], layout: str) -> tuple[int, int]:
    (forest,) = pack([groups[index] for index in indices], layout=layout).forests
    return forest.num_slots, int(attention_rule(forest).sum())


@given(some_groups)
def test_the_forest_of_all_sequences_has_as_many_slots_and_pairs(groups: list[Group]) -> None:
    forest = prefix_forest([sequence for group in groups for sequence in group.sequences]).forest
    work = tree_work([group.held for group in groups])
    assert (work.tokens, work.pairs) == (forest.num_slots, int(attention_rule(forest).sum()))


@given(some_groups)
def test_no_way_costs_more_than_the_one_before_it(groups: list[Group]) -> None:
    held = [group.held for group in groups]
    works = list(counted_works(held, 1000, 0).values())
    for before, after in pairwise(works):
        assert after.tokens <= before.tokens
        assert after.pairs <= before.pairs
        assert after.predictors == before.predictors


def test_responses_that_begin_alike_are_shared_by_the_tree_only() -> None:
    group = TokenGroup.of((7, 8), [(1, 2, 3), (1, 2, 4)])
    works = counted_works([group], 100, 0)
    assert [works[way].tokens for way in (ALONE, SHARED_PROMPTS, GROUP_TREES)] == [10, 8, 6]
    assert [works[way].pairs for way in (ALONE, SHARED_PROMPTS, GROUP_TREES)] == [30, 27, 20]
    assert sum(works.values(), NO_WORK).predictors == 5 * 6


def test_a_system_prompt_before_all_is_computed_once_in_a_row() -> None:
    system = tuple(range(100, 150))
    groups = [TokenGroup.of((*system, index), [(1,), (2,)]) for index in range(4)]
    works = counted_works(groups, row_limit=2 * 53, seed=0)
    assert works[SHARED_PROMPTS].tokens == works[GROUP_TREES].tokens == 4 * 53
    assert works[ROW_TREES].tokens == 2 * (50 + 2 * 3)
    assert works[ONE_TREE].tokens == 50 + 4 * 3


def test_a_group_that_does_not_fit_into_a_row_is_refused() -> None:
    with pytest.raises(GroupDoesNotFit, match="takes 4 slots, more than the row limit of 3"):
        counted_works([TokenGroup.of((1, 2), [(3,), (4,)])], 3, 0)

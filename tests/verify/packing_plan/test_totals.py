"""Sums over a stream of groups against the costs of each group, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.packing_plan.costs import (
    NO_WORK,
    GroupLengths,
    eq1_says_packing,
    memory_ratio,
    packed_work,
    unpacked_work,
)
from verify.packing_plan.totals import MOST_GROUPS, NOTHING, GroupArrays, totals_of

lengths = st.integers(1, 2**26)
some_groups = st.lists(
    st.builds(GroupLengths, lengths, st.lists(lengths, min_size=1, max_size=5).map(tuple)), min_size=1, max_size=6
)


def arrays(groups: list[GroupLengths]) -> GroupArrays:
    return GroupArrays.of([group.prompt for group in groups], [group.responses for group in groups])


@given(some_groups)
def test_sums_are_those_of_the_groups(groups: list[GroupLengths]) -> None:
    totals = totals_of(arrays(groups))
    assert totals.num_groups == len(groups)
    assert totals.num_responses == sum(len(group.responses) for group in groups)
    assert totals.unpacked == sum(map(unpacked_work, groups), NO_WORK)
    assert totals.packed == sum(map(packed_work, groups), NO_WORK)
    assert totals.padded_slots == sum(round(group.packed / memory_ratio(group)) for group in groups)
    assert totals.eq1_packs == sum(map(eq1_says_packing, groups))
    assert totals.eq1_packed == sum(group.packed**2 for group in groups)
    assert totals.eq1_unpacked == sum(len(group.responses) * max(group.sequences) ** 2 for group in groups)


def test_sums_beyond_64_bits_stay_exact() -> None:
    groups = [GroupLengths(2**31, (2**31, 1)), GroupLengths(1, (1,))]
    made = arrays(groups)
    assert made.prompt.dtype == np.object_
    assert totals_of(made).unpacked.pairs == sum(unpacked_work(group).pairs for group in groups) > 2**63
    assert arrays(groups[1:]).prompt.dtype == np.int64


def test_parts_add_up_to_the_whole() -> None:
    groups = [GroupLengths(3, (1, 2)), GroupLengths(4, (5, 6, 7)), GroupLengths(8, (9, 1))]
    made = arrays(groups)
    by_count = [totals_of(made.where(made.count == count)) for count in (2, 3)]
    assert sum(by_count, NOTHING) == totals_of(made)
    assert by_count[1] == totals_of(arrays(groups[1:2]))


@pytest.mark.parametrize("number", [0, MOST_GROUPS + 1])
def test_no_group_and_too_many_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"a batch of {number} groups"):
        arrays([GroupLengths(1, (1,))] * number)

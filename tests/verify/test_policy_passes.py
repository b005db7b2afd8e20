"""Passes without gradients are told apart by what is fed: who feeds all completions twice ran two of them."""

from __future__ import annotations

import pytest

from verify.groups import PreferenceGroup
from verify.policy_passes import FedPass, split_into_passes

FIRST = PreferenceGroup((5, 6, 7), ((8, 9),), ((10, 11),))
SECOND = PreferenceGroup((5, 6, 7, 8), ((12, 13),), ((8, 14, 15),))
PACKED = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 12, 13, 8, 14, 15]]
UNPACKED = [[5, 6, 7, 8, 9], [5, 6, 7, 10, 11], [5, 6, 7, 8, 12, 13], [5, 6, 7, 8, 8, 14, 15]]
# By hand: both groups in one row for each, and one row for each completion.
IS_PACKED, IS_UNPACKED = FedPass(7 + 9, 2, 10 + 13, 4), FedPass(10 + 13, 4, 10 + 13, 4)


@pytest.mark.parametrize(
    ("calls", "passes"),
    [
        ([PACKED, PACKED], (IS_PACKED, IS_PACKED)),
        ([PACKED, PACKED, PACKED], (IS_PACKED,) * 3),
        ([[PACKED[0] + PACKED[1]], PACKED], (FedPass(16, 1, 23, 4), IS_PACKED)),
        ([[row] for row in PACKED] * 2, (IS_PACKED, IS_PACKED)),
        ([[row] for row in (*PACKED[:1] * 2, *PACKED[1:] * 2)], (IS_PACKED, IS_PACKED)),
        ([UNPACKED, PACKED], (IS_UNPACKED, IS_PACKED)),
        ([PACKED, *([row] for row in UNPACKED)], (IS_PACKED, IS_UNPACKED)),
        ([UNPACKED[0::2], UNPACKED[1::2], PACKED], (IS_UNPACKED, IS_PACKED)),
    ],
    ids=["twice", "thrice", "one-row-first", "by-group", "group-by-group", "first-unpacked", "row-by-row", "in-halves"],
)
def test_each_pass_is_held_against_the_rows_of_the_completions_in_it(
    calls: list[list[list[int]]], passes: tuple[FedPass, ...]
) -> None:
    assert split_into_passes(calls, (FIRST, SECOND)) == passes


@pytest.mark.parametrize(
    "calls",
    [
        [PACKED[:1], PACKED[1:]],  # one pass in two calls
        [PACKED, [[1, 2, 3]]],  # what that is cannot be said
        [PACKED, UNPACKED[0::2]],  # of one completion for each prompt nothing could be saved
    ],
)
def test_what_is_not_several_whole_passes_is_left_as_it_is(calls: list[list[list[int]]]) -> None:
    assert split_into_passes(calls, (FIRST, SECOND)) == ()


def test_turns_that_responses_share_may_stand_once_or_in_each() -> None:
    tree = PreferenceGroup((1, 2), ((3, 4, 5), (3, 4)), ((3, 4, 6, 7),))
    for row in ([1, 2, 3, 4, 5, 3, 4, 3, 4, 6, 7], [1, 2, 3, 4, 5, 3, 4, 3, 4, 6]):  # the last token need not be fed
        assert split_into_passes([[row]] * 2, (tree,)) == (FedPass(len(row), 1, 5 + 4 + 6, 3),) * 2
    alone = [[1, 2, 3, 4, 5], [1, 2, 3, 4], [1, 2, 3, 4, 6, 7]]
    assert split_into_passes([alone, alone], (tree,)) == (FedPass(15, 3, 15, 3),) * 2
    assert {fed.slots for fed in split_into_passes([[[1, 2, 3, 4, 5, 6, 7]]] * 2, (tree,))} == {7}


def test_a_group_given_twice_is_in_a_pass_twice() -> None:
    calls = [[PACKED[0]], [PACKED[0]]]
    assert split_into_passes(calls, (FIRST, FIRST)) == ()
    assert split_into_passes(calls * 2, (FIRST, FIRST)) == (FedPass(14, 2, 20, 4),) * 2

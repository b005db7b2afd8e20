"""Tokens by id: what they may see, where they stand, and how they are called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.default_cases.tiny import tiny_cases
from verify.diagnosis.cases import diagnostic_cases, richest_first
from verify.diagnosis.tokens import describe, path_ids, tracked_tokens
from verify.faults.catalogue import FAULTS
from verify.groups import PreferenceGroup

SIZES = st.lists(st.tuples(*[st.integers(1, 6)] * 3), min_size=1, max_size=4)


@given(SIZES)
def test_a_token_sees_what_stands_before_it_on_its_own_path(sizes: list[tuple[int, int, int]]) -> None:
    ids = iter(range(1, 1000))
    groups = [PreferenceGroup(*(tuple(next(ids) for _ in range(n)) for n in s[:1]), *(
        (tuple(next(ids) for _ in range(n)),) for n in s[1:]
    )) for s in sizes]  # fmt: skip
    tokens = tracked_tokens(groups)
    assert len(tokens) == sum(map(sum, sizes))
    paths = [(*group.prompt_ids, *response) for group in groups for response in group.completions]
    for path in paths:
        for place, query in enumerate(path):
            assert tokens[query].path == place
            assert path_ids(tokens[query], groups) == path[: place + 1]


def test_ids_that_occur_twice_are_not_followed() -> None:
    tokens = tracked_tokens([PreferenceGroup((5, 6, 7), ((6, 8),), ((9, 5),))])
    assert set(tokens) == {7, 8, 9}


def test_tokens_are_called_by_segment_and_range() -> None:
    groups = [PreferenceGroup(tuple(range(1, 6)), (tuple(range(6, 12)),), ((12, 13, 14),))]
    tokens = tracked_tokens(groups)

    def named(*ids: int) -> str:
        return describe([tokens[i] for i in ids], groups)

    assert named(14, 12, 13) == "all of the rejected response of group 0"
    assert named(7, 8, 9) == "tokens 1 to 3 of the chosen response of group 0"
    assert named(6, 9, 1) == "token 0 of the prompt of group 0; 2 tokens from 0 to 3 of the chosen response of group 0"


@pytest.mark.parametrize("seed", range(3))
def test_no_id_of_the_diagnostic_case_occurs_twice_or_is_the_padding_id(seed: int) -> None:
    ((case,), _) = diagnostic_cases(257, seed, [("pairs", "sigmoid")])
    assert len(tracked_tokens(case.groups)) == sum(len(g.prompt_ids) for g in case.groups) + case.num_completion_tokens
    assert 0 not in tracked_tokens(case.groups)
    assert diagnostic_cases(200, seed, [("pairs", "sigmoid")]) == (
        (), ("no case diagnosis was made: it takes 223 token ids of 200",)
    )  # fmt: skip


def test_most_faults_bite_on_the_diagnostic_case() -> None:
    ((case,), _) = diagnostic_cases(257, 0, [("pairs", "sigmoid")])
    planted = [fault for fault in FAULTS if fault.kinds == ("pairs",)]
    blind = {fault.name for fault in planted if not fault.bites(case)}
    assert len(blind) <= len(planted) // 12, blind


def test_cases_with_more_groups_come_first() -> None:
    assert [case.name for case in richest_first(tiny_cases(257, 0))[:2]] == ["examples-long", "five-uneven-groups"]

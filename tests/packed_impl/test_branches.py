from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packed_impl.branches import plan_branches
from packed_impl.groups import completion_name
from packed_impl.layout import LAYOUTS


def ids_of(packed: Any) -> list[tuple[int, ...]]:
    ids, start = packed.token_ids.tolist(), 0
    found = []
    for length in packed.completion_lengths:
        found.append(tuple(ids[start : start + length]))
        start += length
    return found


def test_the_example_of_the_docstring(make_group: Any) -> None:
    a, b, c = (10, 11), (20,), (30, 31, 32)
    groups = [make_group((1,), (a,), (b,)), make_group((1,), (c,), (b,))]
    plan = plan_branches(groups, 2, layout="shared-prompt")
    assert [ids_of(packed) for packed in plan.micro_batches] == [[a, b], [c]]
    assert plan.branch_of_completion.tolist() == [0, 1, 2, 1]
    assert plan.counts.tolist() == [2, 1, 3]


token_ids = st.integers(1, 2)
responses = st.lists(st.lists(token_ids, min_size=1, max_size=3).map(tuple), min_size=2, max_size=5, unique=True)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.lists(token_ids, min_size=1, max_size=2).map(tuple), responses), min_size=1, max_size=4),
    st.integers(1, 6),
    st.sampled_from(LAYOUTS),
)
def test_every_completion_is_found_in_its_branch_and_no_branch_runs_twice(
    make_group: Any, drawn: list[Any], size: int, layout: str
) -> None:
    groups = [make_group(prompt, tuple(found[:1]), tuple(found[1:])) for prompt, found in drawn]
    plan = plan_branches(groups, size, layout=layout)
    assert all(1 <= len(packed.completion_lengths) <= size for packed in plan.micro_batches)
    branches = [ids for packed in plan.micro_batches for ids in ids_of(packed)]
    completions = [response for group in groups for response in group.positives + group.negatives]
    assert [branches[number] for number in plan.branch_of_completion] == completions
    assert len(branches) == len({(prompt, response) for prompt, found in drawn for response in found})
    assert sorted(set(plan.branch_of_completion.tolist())) == list(range(len(branches)))
    assert plan.counts.tolist() == list(map(len, branches))


def test_another_mask_makes_another_branch(make_group: Any) -> None:
    groups = [
        make_group((1,), ((5, 6),), ((7,),), ((True, True), (True,))),
        make_group((1,), ((8,),), ((5, 6),), ((True,), (False, True))),
        make_group((1,), ((5, 6),), ((9,),)),
    ]
    plan = plan_branches(groups, 8, layout="shared-prompt")
    assert plan.branch_of_completion.tolist() == [0, 1, 2, 3, 0, 4]
    assert plan.counts.tolist() == [2, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("positives", "negatives", "places"),
    [
        (((5,), (6,), (5,)), ((7,),), r"positives\[0\] and as positives\[2\]"),
        (((5,),), ((7,), (7,)), r"negatives\[0\] and as negatives\[1\]"),
        (((5,), (6,)), ((7,), (6,)), r"positives\[1\] and as negatives\[1\]"),
    ],
)
def test_a_response_twice_in_a_group_is_refused(make_group: Any, positives: Any, negatives: Any, places: str) -> None:
    groups = [make_group((1,), ((2,),), ((3,),)), make_group((1,), positives, negatives)]
    with pytest.raises(ValueError, match=f"group 1 has the same response as {places}"):
        plan_branches(groups, 2, layout="shared-prompt")


def test_a_micro_batch_holds_a_branch_at_least(make_group: Any) -> None:
    with pytest.raises(ValueError, match="branches_per_micro_batch is 0"):
        plan_branches([make_group((1,), ((2,),), ((3,),))], 0, layout="shared-prompt")


def test_completions_are_named_by_group_side_and_place(make_group: Any) -> None:
    groups = [make_group((1,), ((2,),), ((3,),)), make_group((1,), ((4,), (5,)), ((6,), (7,)))]
    assert completion_name(groups, 1) == "group 0, negatives[0]"
    assert completion_name(groups, 3) == "group 1, positives[1]"
    assert completion_name(groups, 5) == "group 1, negatives[1]"

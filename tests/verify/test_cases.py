"""The embedded cases: what the faults of the field need to show is there, and the same in every run of a seed."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations, pairwise, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.cases import Case
from verify.default_cases.objectives import objective_cases
from verify.default_cases.real_size import real_cases, synthetic_cases
from verify.default_cases.tiny import tiny_cases
from verify.groups import PreferenceGroup

VOCABULARY = 257
CASES = tiny_cases(VOCABULARY, 0)
PAIRS = [
    (case.name, g.prompt_ids, g.positives[0], g.negatives[0])
    for case in CASES
    if case.kind == "pairs"
    for g in case.groups
]


def test_names_are_distinct_and_stable() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 12
    assert names == [case.name for case in tiny_cases(VOCABULARY, 9)]
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


def test_every_case_says_what_it_can_show_that_others_cannot() -> None:
    reasons = [case.why for case in CASES]
    assert all(len(reason) > 10 for reason in reasons)
    assert len(set(reasons)) == len(reasons)


CONDITIONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...], tuple[int, ...]], bool]] = {
    "a prompt of one token": lambda p, c, r: len(p) == 1,
    "a chosen response of one token": lambda p, c, r: len(c) == 1 < len(r),
    "a rejected response of one token": lambda p, c, r: len(r) == 1 < len(c),
    "both responses of one token": lambda p, c, r: len(c) == len(r) == 1,
    "equal lengths": lambda p, c, r: len(c) == len(r) > 1 and c != r,
    "very unequal lengths": lambda p, c, r: max(len(c), len(r)) >= 20 * min(len(c), len(r)),
    "chosen much shorter": lambda p, c, r: 10 * len(c) < len(r),
    "responses that begin alike": lambda p, c, r: c[:5] == r[:5] and c[-1] != r[-1],
    "one response inside the other": lambda p, c, r: len(c) != len(r) and r[: len(c)] == c,
    "a response that repeats the prompt": lambda p, c, r: c == p[: len(c)] and len(c) > 5,
    "a prompt beyond 256 tokens": lambda p, c, r: len(p) > 256,
    "a response longer than the prompt": lambda p, c, r: min(len(c), len(r)) > 4 * len(p),
    "127 tokens": lambda p, c, r: {len(p), len(c), len(r)} == {127},
    "128 tokens": lambda p, c, r: {len(p), len(c), len(r)} == {128},
    "129 tokens": lambda p, c, r: {len(p), len(c), len(r)} == {129},
    "a response that ends in a token of value 0": lambda p, c, r: c[-1] == 0 or r[-1] == 0,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_condition_is_met_by_some_case(condition: str) -> None:
    assert [name for name, *pair in PAIRS if CONDITIONS[condition](*pair)]


def test_several_groups_come_in_one_case_evenly_and_unevenly() -> None:
    counts = {len(case.groups) for case in CASES}
    assert 2 in counts
    assert max(counts) >= 4
    (many,) = [case for case in CASES if len(case.groups) == 5]
    assert len({len(group.prompt_ids) for group in many.groups}) == len(many.groups)


def lengths(group: PreferenceGroup) -> tuple[int, ...]:
    return (len(group.prompt_ids), *map(len, group.completions))


OF_SEVERAL_GROUPS: dict[str, Callable[[tuple[PreferenceGroup, ...]], bool]] = {
    "one prompt twice, other responses": lambda groups: any(
        one.prompt_ids == other.prompt_ids and one.completions != other.completions
        for one, other in combinations(groups, 2)
    ),
    "one prompt twice, one response in both": lambda groups: any(
        one.prompt_ids == other.prompt_ids and len(set(one.completions) & set(other.completions)) == 1
        for one, other in combinations(groups, 2)
    ),
    "prompts that begin alike": lambda groups: any(
        one.prompt_ids[:8] == other.prompt_ids[:8] and one.prompt_ids[8:] != other.prompt_ids[8 : len(one.prompt_ids)]
        for one, other in permutations(groups, 2)
    ),
    "a prompt with which another begins": lambda groups: any(
        one.prompt_ids == other.prompt_ids[: len(one.prompt_ids)] and one.prompt_ids != other.prompt_ids
        for one, other in permutations(groups, 2)
    ),
    "one response under two prompts": lambda groups: any(
        one.prompt_ids != other.prompt_ids and set(one.completions) & set(other.completions)
        for one, other in combinations(groups, 2)
    ),
    "two prompts, all lengths alike": lambda groups: (
        len({group.prompt_ids for group in groups}) > 1 and len(set(map(lengths, groups))) == 1
    ),
    "a one-token prompt between others": lambda groups: any(len(group.prompt_ids) == 1 for group in groups[1:-1]),
}


@pytest.mark.parametrize("condition", OF_SEVERAL_GROUPS)
def test_the_condition_on_several_groups_is_met_by_some_case(condition: str) -> None:
    assert [case.name for case in CASES if OF_SEVERAL_GROUPS[condition](case.groups)]


def test_the_last_cases_leave_the_tokens_of_the_others_as_they_were() -> None:
    """So records of an earlier run stay comparable: the sum was taken when there were nineteen cases."""
    tokens = [t for case in CASES[:19] for g in case.groups for ids in (g.prompt_ids, *g.completions) for t in ids]
    assert (len(tokens), sum(tokens), tokens[-4:]) == (2397, 305921, [1, 214, 65, 40])


@given(st.integers(0, 2**32), st.integers(2, 1000))
def test_the_seed_decides_every_token_and_nothing_else_does(seed: int, vocab_size: int) -> None:
    first, second = tiny_cases(vocab_size, seed), tiny_cases(vocab_size, seed)
    assert first == second
    ids = {t for case in first for g in case.groups for part in (g.prompt_ids, *g.completions) for t in part}
    assert max(ids) < vocab_size
    assert synthetic_cases(vocab_size, seed) == synthetic_cases(vocab_size, seed)


def test_another_seed_gives_other_tokens_of_the_same_shape() -> None:
    def shape(case: Case) -> list[list[int]]:
        return [[len(ids) for ids in (group.prompt_ids, *group.completions)] for group in case.groups]

    for one, other in zip(CASES, tiny_cases(VOCABULARY, 1), strict=True):
        assert one.groups != other.groups
        assert shape(one) == shape(other)


def test_no_seed_makes_a_preferred_response_equal_to_a_rejected_one() -> None:
    """Their margin is zero: of a pair the case would prove nothing, and the run with it."""
    equal = [
        (seed, case.name)
        for seed in range(600)
        for case in tiny_cases(VOCABULARY, seed)
        for group in case.groups
        if set(group.positives) & set(group.negatives)
    ]
    assert equal == []


def groups_of_kind(kind: str) -> list[tuple[PreferenceGroup, ...]]:
    return [case.groups for case in CASES if case.kind == kind]


def test_all_kinds_are_there_and_a_model_of_real_size_starts_with_pairs() -> None:
    assert {case.kind for case in CASES} == {"pairs", "groups", "examples"}
    assert {case.kind for case in synthetic_cases(99, 0)} == {"pairs"}
    assert {case.objective_name for case in CASES} == {"sigmoid", "sft-token-mean", "sft-example-mean"}


def test_groups_come_with_several_of_each_side_and_unevenly_within_a_batch() -> None:
    sides = [[(len(g.positives), len(g.negatives)) for g in groups] for groups in groups_of_kind("groups")]
    assert any(m > 1 and n > 1 and m != n for of_case in sides for m, n in of_case)
    assert any(len({m * n for m, n in of_case}) == len(of_case) > 2 for of_case in sides)


def shared_lengths(group: PreferenceGroup) -> set[int]:
    """Tokens that two responses of a group begin with in common."""
    return {
        next((place for place, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
        for x, y in combinations(group.completions, 2)
    }


@pytest.mark.parametrize(("levels", "case"), [(4, "tree-of-turns"), (5, "groups-long")])
def test_responses_part_at_so_many_levels_and_one_ends_inside_the_tree(levels: int, case: str) -> None:
    """Prompt, and under it turns at whose ends responses part or end: so many segments on the longest path."""
    (groups,) = (c.groups for c in CASES if c.name == case)
    (deep,) = [group for group in groups if len(shared_lengths(group) - {0}) >= levels - 1]
    assert any(y[: len(x)] == x for x in deep.completions for y in deep.completions if len(x) < len(y))


def test_a_sequence_comes_with_another_end_of_its_prompt_and_a_response_behind_a_prompt_that_begins_alike() -> None:
    (groups,) = (case.groups for case in CASES if case.name == "prompts-begin-alike")
    paths = {(len(group.prompt_ids), group.prompt_ids + ids) for group in groups for ids in group.completions}
    assert len({path for _, path in paths}) < len(paths)
    found = {(group.prompt_ids, ids) for group in groups for ids in group.completions}
    assert len({(prompt_ids[:16], ids) for prompt_ids, ids in found}) < len(found)


def test_one_prompt_has_the_tokens_of_another_in_another_order_and_the_same_responses() -> None:
    (groups,) = (case.groups for case in CASES if case.name == "prompts-begin-alike")
    first, last = groups[0], groups[-1]
    assert first.prompt_ids != last.prompt_ids
    assert sorted(first.prompt_ids) == sorted(last.prompt_ids)
    assert first.completions == last.completions


def test_each_objective_has_a_group_whose_lengths_are_not_its_supervised_tokens() -> None:
    for case in objective_cases(257, 0):
        assert [group.num_supervised == tuple(map(len, group.completions)) for group in case.groups] == [True, False]


def test_two_prompts_begin_alike_and_part() -> None:
    assert any(
        one.prompt_ids[0] == other.prompt_ids[0] and one.prompt_ids != other.prompt_ids
        for groups in groups_of_kind("groups")
        for one, other in combinations(groups, 2)
    )


def test_examples_come_with_several_spans_with_one_token_and_with_a_shared_prompt() -> None:
    examples = [group for groups in groups_of_kind("examples") for group in groups]
    spans = [sum(b - a > 1 for a, b in pairwise(places)) + 1 for group in examples for places in group.supervised]
    assert max(spans) >= 3
    assert min(sum(group.num_supervised) for group in examples) == 1
    assert any(len(group.positives) > 1 for group in examples)
    assert min(len(group.prompt_ids) for group in examples) == 1


def test_what_a_step_takes_follows_from_the_objective() -> None:
    example = Case(name="c", why="", groups=(PreferenceGroup((1,), ((2,),)),), objective_name="sft-token-mean")
    pair = Case(name="c", why="", groups=(PreferenceGroup((1,), ((2,),), ((3,),)),))
    assert (example.num_passes, pair.num_passes) == (1, 2)
    masked = PreferenceGroup((1,), ((2, 3),), ((3,),), completion_masks=((True, False), (True,)))
    assert Case(name="c", why="", groups=(masked,)).kind == "groups"
    assert Case(name="c", why="", groups=(masked,)).num_completion_tokens == 2


@pytest.mark.parametrize(
    ("group", "objective", "message"),
    [
        (PreferenceGroup((1,), ((2,),)), "sigmoid", "no rejected response"),
        (PreferenceGroup((1,), ((2,),), ((3,),)), "sft-token-mean", "a rejected response under sft-token-mean"),
        (
            PreferenceGroup((1,), ((2,),), ((3,),)),
            "dpo",
            "unknown objective 'dpo'; give one of sigmoid",
        ),
    ],
)
def test_groups_that_the_objective_has_no_meaning_for_are_refused(
    group: PreferenceGroup, objective: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=f"case c.*{message}"):
        Case(name="c", why="", groups=(group,), objective_name=objective)


def test_counts_of_a_case_by_hand() -> None:
    case = Case(
        name="c",
        why="",
        groups=(PreferenceGroup((1, 2, 3), ((4, 5),), ((6,),)), PreferenceGroup((7,), ((8,),), ((9, 10, 11),))),
    )
    assert case.num_completion_tokens == 2 + 1 + 1 + 3
    assert case.pairwise_slots == (3 + 2) + (3 + 1) + (1 + 1) + (1 + 3)


@pytest.mark.parametrize(
    ("group", "objective", "can_save"),
    [
        (PreferenceGroup((1, 2), ((3,),), ((4,),)), "sigmoid", True),
        (PreferenceGroup((1,), ((3,),), ((4,),)), "sigmoid", False),
        (PreferenceGroup((1, 2), ((3,),)), "sft-token-mean", False),
        (PreferenceGroup((1,), ((3,), (4,))), "sft-token-mean", True),
    ],
)
def test_packing_shows_where_a_prompt_is_shared_or_examples_share_a_row(
    group: PreferenceGroup, objective: Any, can_save: bool
) -> None:
    assert Case(name="c", why="", groups=(group,), objective_name=objective).can_save is can_save


def test_a_case_without_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="case empty: no groups, nothing would be compared"):
        Case(name="empty", why="", groups=())


def test_a_case_for_models_of_real_size_is_small_and_holds_two_pairs() -> None:
    (case,) = synthetic_cases(151_936, 0)
    assert len(case.groups) == 2
    assert 200 < case.pairwise_slots < 800
    assert max(t for group in case.groups for t in group.prompt_ids) > 10_000


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_real_pairs_share_rows_the_shortest_with_the_longest(count: int) -> None:
    groups = [PreferenceGroup((1,) * (n + 1), ((2,),), ((3,),), source=f"pairs.jsonl:{n}") for n in range(count)]
    cases = real_cases(groups)
    assert sorted(g.source for case in cases for g in case.groups) == [g.source for g in groups]
    assert [len(case.groups) for case in cases] == [2] * (count // 2) + [1] * (count % 2)
    if count > 1:
        assert [g.source for g in cases[0].groups] == ["pairs.jsonl:0", f"pairs.jsonl:{count - 1}"]
        assert "pairs.jsonl:0 and pairs.jsonl:" in cases[0].why
    assert len({case.name for case in cases}) == len(cases)

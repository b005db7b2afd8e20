"""The search finds the smallest candidate of failures whose smallest is known, in few trials, the same every time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.models.request import ModelRequest
from verify.objective import ObjectiveName
from verify.shrink.candidate import Candidate, seeded
from verify.shrink.search import LimitReachedError, Limits, Search, minimise

NO_LIMIT = Limits(trials=10_000, until=float("inf"))
SMALL_WIDTHS = {"layers": 1, "query heads": 1, "key heads": 1, "head dimension": 8, "hidden size": 8, "MLP size": 8}


def candidate(*sizes: tuple[int, int, int]) -> Candidate:
    """Token ids count up, so that every token is another one."""
    ids = iter(range(100_000))

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(next(ids) for _ in range(count))

    groups = tuple(PreferenceGroup(tokens(p), (tokens(c),), (tokens(r),)) for p, c, r in sizes)
    return seeded(Candidate(Case(name="drawn", why="", groups=groups), ModelRequest(name="tiny")))


def lengths(found: Candidate) -> list[tuple[int, ...]]:
    return [(len(g.prompt_ids), *(len(ids) for ids in g.completions)) for g in found.case.groups]


def shrunk(start: Candidate, fails: Callable[[Candidate], bool], limits: Limits = NO_LIMIT) -> Search:
    search = Search(start, fails, limits)
    minimise(search)
    return search


def test_what_always_fails_becomes_as_small_as_a_case_can_be() -> None:
    search = shrunk(candidate((33, 5, 21), (2, 18, 4), (48, 1, 6)), lambda _: True)
    assert lengths(search.best) == [(1, 1, 1)]
    assert search.best.size.items() >= {**SMALL_WIDTHS, "largest token id": 2, "vocabulary": 3}.items()
    assert search.trials < 20


def test_what_never_fails_again_stays_as_it_was() -> None:
    start = candidate((6, 5, 4), (2, 8, 4))
    search = shrunk(start, lambda _: False)
    assert search.best == start


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(*[st.integers(1, 40)] * 3), min_size=1, max_size=5),
    data=st.data(),
)
def test_lengths_that_a_failure_needs_are_found_to_the_token(
    sizes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """A failure that needs at least (p, c, r) tokens in one group of at least n groups."""
    num_groups = data.draw(st.integers(1, len(sizes)))
    needed = [data.draw(st.integers(1, of)) for of in data.draw(st.sampled_from(sizes))]

    def fails(tried: Candidate) -> bool:
        enough = any(all(a >= b for a, b in zip(of, needed, strict=True)) for of in lengths(tried))
        return enough and len(tried.case.groups) >= num_groups

    found = lengths(shrunk(candidate(*sizes), fails).best)
    assert sorted(found) == sorted([tuple(needed)] + [(1, 1, 1)] * (num_groups - 1))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(1, 60))
def test_a_sum_of_lengths_is_undercut_by_no_single_token(prompt: int, response: int) -> None:
    """As for positions beyond 256: prompt and response trade off against each other."""
    needed = 2 * (prompt + response) // 3

    def fails(tried: Candidate) -> bool:
        ((p, c, _),) = lengths(tried)
        return p + c >= needed

    (found,) = lengths(shrunk(candidate((prompt, response, 7)), fails).best)
    assert found[0] + found[1] == max(needed, 2)
    assert found[2] == 1


@pytest.mark.parametrize("length", [1, 3, 15, 16, 37])
def test_responses_that_must_be_equally_long_are_cut_together(length: int) -> None:
    def fails(tried: Candidate) -> bool:
        ((_, chosen, rejected),) = lengths(tried)
        return chosen == rejected >= length

    assert lengths(shrunk(candidate((9, 40, 40)), fails).best) == [(1, length, length)]


def test_three_groups_are_kept_where_the_third_must_see_the_second() -> None:
    def fails(tried: Candidate) -> bool:
        return len(tried.case.groups) >= 3

    assert len(shrunk(candidate(*[(9, 4, 4)] * 8), fails).best.case.groups) == 3


@pytest.mark.parametrize("place", [0, 7, 13, 29])
def test_a_single_token_that_matters_is_kept_wherever_it_is(place: int) -> None:
    start = candidate((30, 3, 3))
    needle = start.case.groups[0].prompt_ids[place]

    def fails(tried: Candidate) -> bool:
        return needle in tried.case.groups[0].prompt_ids

    found = shrunk(start, fails).best
    assert needle in found.case.groups[0].prompt_ids
    assert len(found.case.groups[0].prompt_ids) < 30


def test_heads_and_layers_that_matter_are_kept() -> None:
    def fails(tried: Candidate) -> bool:
        return tried.size["layers"] >= 2 and tried.size["query heads"] > tried.size["key heads"]

    size = shrunk(candidate((4, 3, 3)), fails).best.size
    assert (size["layers"], size["query heads"], size["key heads"]) == (2, 2, 1)


def test_a_checkpoint_keeps_its_shape() -> None:
    start = Candidate(candidate((9, 8, 7)).case, ModelRequest(name="."))
    best = shrunk(start, lambda _: True).best
    assert lengths(best) == [(1, 1, 1)]
    assert best.model == start.model


def test_the_limit_on_trials_is_kept_and_the_best_so_far_stands() -> None:
    tried: list[Candidate] = []

    def fails(one: Candidate) -> bool:
        tried.append(one)
        return True

    search = shrunk(candidate((40, 30, 20), (9, 9, 9)), fails, Limits(trials=3, until=float("inf")))
    assert len(tried) == search.trials == 3
    assert search.best == tried[-1]
    assert search.stopped_by == "3 trials"


def test_no_trial_begins_after_the_time_is_over() -> None:
    search = shrunk(candidate((4, 3, 3)), lambda _: True, Limits(trials=9, until=time.monotonic() - 1))
    assert (search.trials, search.stopped_by) == (0, "the time limit")


def test_no_candidate_is_tried_twice() -> None:
    tried: list[Candidate] = []

    def fails(one: Candidate) -> bool:
        tried.append(one)
        return len(one.case.groups[0].prompt_ids) >= 5

    search = shrunk(candidate((40, 3, 3)), fails)
    assert len(tried) == len(set(tried)) == search.trials
    assert not search.stopped_by


def test_the_search_is_the_same_every_time() -> None:
    def steps() -> list[Candidate]:
        tried: list[Candidate] = []

        def fails(one: Candidate) -> bool:
            tried.append(one)
            return sum(map(sum, lengths(one))) % 3 != 1

        shrunk(candidate((33, 5, 21), (2, 18, 4)), fails)
        return tried

    assert steps() == steps()


def test_a_limit_is_raised_to_whoever_asks_for_one_more() -> None:
    search = Search(candidate((4, 3, 3)), lambda _: True, Limits(trials=0, until=float("inf")))
    with pytest.raises(LimitReachedError, match="0 trials"):
        search.accepts(candidate((3, 3, 3)))
    assert search.accepts(search.best)  # known already


def of_groups(*groups: PreferenceGroup, objective: ObjectiveName = "sigmoid") -> Candidate:
    case = Case(name="drawn", why="", groups=groups, objective_name=objective)
    return seeded(Candidate(case, ModelRequest(name="tiny")))


TREE = PreferenceGroup(
    tuple(range(10, 20)),
    (tuple(range(20, 32)), (*range(20, 26), 40, 41, 42)),
    ((*range(20, 26), 50, 51), (60, 61, 62, 63), (*range(20, 22), 70)),
)


def begins_alike(group: PreferenceGroup) -> bool:
    first = [ids[0] for ids in group.completions]
    return len(set(first)) < len(first)


def test_responses_that_matter_are_kept_and_begin_alike_only_where_it_matters() -> None:
    def two_negatives(tried: Candidate) -> bool:
        return any(len(group.negatives) >= 2 for group in tried.case.groups)

    (group,) = shrunk(of_groups(TREE, TREE), two_negatives).best.case.groups
    assert [len(ids) for ids in (group.prompt_ids, *group.completions)] == [1, 1, 1, 1]
    assert not begins_alike(group)


def test_a_tree_that_matters_stays_a_tree() -> None:
    """A failure that needs two responses with two tokens in common, and a token behind."""

    def fails(tried: Candidate) -> bool:
        pairs = [(a, b) for group in tried.case.groups for a in group.positives for b in group.negatives]
        return any(a[:2] == b[:2] and min(len(a), len(b)) > 2 and a[2] != b[2] for a, b in pairs)

    (group,) = shrunk(of_groups(TREE), fails).best.case.groups
    assert [len(ids) for ids in (group.prompt_ids, *group.completions)] == [1, 3, 3]
    assert group.positives[0][:2] == group.negatives[0][:2]


def test_prompts_that_begin_alike_are_cut_together() -> None:
    def fails(tried: Candidate) -> bool:
        prompts = [group.prompt_ids for group in tried.case.groups]
        return len(prompts) == 2 and prompts[0][:1] == prompts[1][:1] and prompts[0][:5] == prompts[1][:5]

    start = of_groups(*(PreferenceGroup((*range(9), 30 + n), ((40 + n,),), ((50 + n,),)) for n in range(2)))
    found = shrunk(start, fails).best.case.groups
    assert [group.prompt_ids[0] for group in found] == [0, 0]
    assert all(len(group.prompt_ids) == 1 for group in found)


def test_a_mask_that_matters_is_kept_and_any_other_goes() -> None:
    """A failure that needs a token which is not supervised between two that are."""
    example = PreferenceGroup(
        tuple(range(8)), (tuple(range(10, 22)),), completion_masks=((True,) * 4 + (False,) * 5 + (True,) * 3,)
    )

    def fails(tried: Candidate) -> bool:
        masks = [mask for group in tried.case.groups for mask in group.completion_masks]
        return any("".join("01"[value] for value in mask).strip("0").count("0") > 0 for mask in masks)

    best = shrunk(of_groups(example, example, objective="sft-token-mean"), fails).best
    assert best.case.objective_name == "sft-token-mean"
    assert best.case.groups == (PreferenceGroup((0,), ((1, 2, 3),), completion_masks=((True, False, True),)),)
    (group,) = shrunk(of_groups(example, objective="sft-token-mean"), lambda _: True).best.case.groups
    assert group == PreferenceGroup((0,), ((1,),))

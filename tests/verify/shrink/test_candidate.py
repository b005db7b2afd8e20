"""Making a candidate smaller changes what was asked for and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.models.request import ModelRequest
from verify.objective import ObjectiveName
from verify.shrink.candidate import (
    PROMPT,
    Candidate,
    Segment,
    edited,
    fewer_heads,
    first_tokens,
    renumbered,
    seeded,
    sharing,
    smaller_field,
    smaller_vocabulary,
    unshared,
    with_config,
    without_groups,
    without_masks,
    without_response,
    without_tokens,
)

TINY = ModelRequest(name="tiny")
tokens = st.lists(st.integers(0, 256), min_size=1, max_size=9).map(tuple)


@st.composite
def drawn_groups(draw: st.DrawFn) -> PreferenceGroup:
    """Of any size, some with masks."""
    positives, negatives = (tuple(draw(st.lists(tokens, min_size=1, max_size=2))) for _ in range(2))
    masks = tuple(
        tuple(draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)).filter(any)))
        for ids in positives + negatives
    )
    return PreferenceGroup(draw(tokens), positives, negatives, completion_masks=masks if draw(st.booleans()) else ())


groups = drawn_groups()
candidates = st.lists(groups, min_size=1, max_size=4).map(
    lambda drawn: Candidate(Case(name="drawn", why="", groups=tuple(drawn)), TINY)
)


@pytest.fixture
def pair() -> Candidate:
    group = PreferenceGroup((5, 6, 7), ((10, 11, 12, 13),), ((20, 21),))
    return seeded(Candidate(Case(name="pair", why="", groups=(group, group)), TINY))


def test_segments_come_in_the_order_of_the_case(pair: Candidate) -> None:
    assert [pair.tokens(segment) for segment in pair.segments[:3]] == [(5, 6, 7), (10, 11, 12, 13), (20, 21)]
    assert pair.segments[3] == Segment(1, PROMPT)


def test_an_edit_reaches_the_segments_that_were_named_and_no_other(pair: Candidate) -> None:
    cut = edited(pair, {Segment(0, PROMPT), Segment(1, 1)}, first_tokens(1))
    assert cut.case.groups == (
        PreferenceGroup((5,), ((10, 11, 12, 13),), ((20, 21),)),
        PreferenceGroup((5, 6, 7), ((10, 11, 12, 13),), ((20,),)),
    )
    assert cut.model == pair.model


@pytest.mark.parametrize(("start", "left"), [(0, (12, 13)), (1, (10, 13)), (2, (10, 11)), (-1, (10, 11))])
def test_two_tokens_are_taken_out_where_it_was_said(pair: Candidate, start: int, left: tuple[int, ...]) -> None:
    assert edited(pair, {Segment(0, 0)}, without_tokens(start, 2)).case.groups[0].positives == (left,)


@given(candidates)
def test_renumbering_keeps_which_tokens_are_equal_and_their_order(candidate: Candidate) -> None:
    flat = [token for segment in candidate.segments for token in candidate.tokens(segment)]
    small = renumbered(candidate)
    renamed = [token for segment in small.segments for token in small.tokens(segment)]
    assert sorted(set(renamed)) == list(range(len(set(flat))))
    assert all(
        (a < b) == (x < y) for a, x in zip(flat, renamed, strict=True) for b, y in zip(flat, renamed, strict=True)
    )


@given(candidates)
def test_an_edit_that_changes_nothing_gives_an_equal_candidate(candidate: Candidate) -> None:
    """Equal candidates are tried once."""
    same = edited(candidate, candidate.segments, lambda ids: ids)
    assert same == candidate
    assert hash(same) == hash(candidate)


def test_groups_are_taken_out_by_place() -> None:
    groups = tuple(PreferenceGroup((n,), ((n,),), ((n + 1,),)) for n in range(4))
    candidate = Candidate(Case(name="four", why="", groups=groups), TINY)
    assert [group.prompt_ids[0] for group in without_groups(candidate, 1, 2).case.groups] == [0, 3]


def test_the_depth_that_was_asked_for_becomes_that_of_the_config() -> None:
    candidate = Candidate(Case(name="x", why="", groups=(PreferenceGroup((1,), ((2,),), ((3,),)),)), TINY)
    cut = seeded(Candidate(candidate.case, ModelRequest(name="tiny", num_layers=1)))
    assert (cut.model.config.num_hidden_layers, cut.model.num_layers) == (1, None)  # type: ignore[union-attr]
    assert seeded(candidate).size["layers"] == 2


def test_heads_always_divide_and_the_fewest_come_first(pair: Candidate) -> None:
    shapes = [(c.size["query heads"], c.size["key heads"]) for c in fewer_heads(pair)]
    assert shapes[0] == (1, 1)
    assert shapes == sorted(shapes)
    assert set(shapes) == {(1, 1), (2, 1), (2, 2), (4, 1)}
    assert all(heads % kv_heads == 0 for heads, kv_heads in shapes)


def test_widths_grow_from_the_smallest_and_stay_below_what_is_there(pair: Candidate) -> None:
    assert [c.size["hidden size"] for c in smaller_field(pair, "hidden_size", 8)] == [8, 16, 32]


def test_the_vocabulary_keeps_every_token_of_the_case(pair: Candidate) -> None:
    (small,) = smaller_vocabulary(pair)
    assert small.size["vocabulary"] == 22
    assert list(smaller_vocabulary(with_config(pair, vocab_size=22))) == []


def of_groups(*drawn: PreferenceGroup, objective: ObjectiveName = "sigmoid") -> Candidate:
    return seeded(Candidate(Case(name="drawn", why="", groups=drawn, objective_name=objective), TINY))


MASKED = PreferenceGroup((1, 2), ((3, 4, 5), (6, 7)), completion_masks=((True, False, True), (False, True)))


def test_masks_are_cut_with_the_tokens_they_belong_to() -> None:
    examples = of_groups(MASKED, objective="sft-token-mean")
    cut = edited(examples, examples.segments, without_tokens(0, 1)).case
    assert cut.objective_name == "sft-token-mean"
    assert cut.groups == (
        PreferenceGroup((2,), ((4, 5), (7,)), completion_masks=((False, True), (True,))),
    )  # fmt: skip


def test_no_response_is_left_without_a_supervised_token() -> None:
    examples = of_groups(MASKED, objective="sft-token-mean")
    (group,) = edited(examples, {Segment(0, 0), Segment(0, 1)}, first_tokens(1)).case.groups
    assert group.completions == ((3,), (6, 7))
    assert group.completion_masks == ((True,), (False, True))


@given(candidates, st.data())
def test_whatever_is_cut_stays_a_case(candidate: Candidate, data: st.DataObject) -> None:
    """Its masks fit, which PreferenceGroup would refuse otherwise, and no token of another segment is touched."""
    segment = data.draw(st.sampled_from(candidate.segments))
    size = data.draw(st.integers(1, 4))
    if len(candidate.tokens(segment)) > size:
        cut = edited(candidate, {segment}, without_tokens(data.draw(st.sampled_from([-1, 0])), size))
        assert len(cut.tokens(segment)) in (len(candidate.tokens(segment)), len(candidate.tokens(segment)) - size)
        assert all(cut.tokens(s) == candidate.tokens(s) for s in candidate.segments if s != segment)


def test_responses_are_left_out_down_to_what_the_objective_needs() -> None:
    pair = of_groups(PreferenceGroup((1,), ((2,), (3,)), ((4,),)))
    left = without_response(pair, Segment(0, 0))
    assert left is not None
    assert left.case.groups == (PreferenceGroup((1,), ((3,),), ((4,),)),)
    assert without_response(left, Segment(0, 0)) is without_response(left, Segment(0, 1)) is None
    examples = without_response(of_groups(MASKED, objective="sft-example-mean"), Segment(0, 0))
    assert examples is not None
    assert examples.case.groups == (PreferenceGroup((1, 2), ((6, 7),), completion_masks=((False, True),)),)
    assert without_masks(examples, 0).case.groups == (PreferenceGroup((1, 2), ((6, 7),)),)


def test_what_begins_alike_on_one_path_is_found_and_parted() -> None:
    tree = of_groups(
        PreferenceGroup((1, 2), ((3, 4, 5),), ((3, 4, 6), (7, 4))), PreferenceGroup((1, 8), ((3, 4),), ((9,),))
    )
    assert sharing(tree, Segment(0, 0), 2) == {Segment(0, 0), Segment(0, 1)}
    assert sharing(tree, Segment(1, PROMPT), 1) == {Segment(0, PROMPT), Segment(1, PROMPT)}
    assert sharing(tree, Segment(1, 0), 1) == {Segment(1, 0)}  # behind another prompt
    assert unshared(tree, Segment(0, 0)) is None  # the first of those that begin alike keeps its tokens
    parted = unshared(tree, Segment(0, 1))
    assert parted is not None
    assert parted.tokens(Segment(0, 1)) == (10, 11, 12)
    assert unshared(with_config(tree, vocab_size=12), Segment(0, 1)) is None

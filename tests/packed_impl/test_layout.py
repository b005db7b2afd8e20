from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_impl.bins import first_fit_decreasing, packed_length
from packed_impl.forest import attention_rule, padded
from packed_impl.layout import LAYOUTS, ROWS, pack
from packed_impl.prefix_tree import num_prefix_slots

ids = st.integers(1, 99) | st.integers(1, 2)  # few tokens, so that prefixes are shared, or many
responses = st.lists(st.lists(ids, min_size=1, max_size=4).map(tuple), min_size=1, max_size=3).map(tuple)
groups_of_any_shape = st.lists(
    st.builds(
        SimpleNamespace,
        prompt_ids=st.lists(ids, min_size=1, max_size=4).map(tuple),
        positives=responses,
        negatives=st.just(()) | responses,
        completion_masks=st.just(()),
        images=st.just(()),
    ),
    min_size=1,
    max_size=4,
)


def in_any_rows(data: st.DataObject, num_groups: int) -> list[list[int]]:
    """Groups in any order, cut into rows anywhere."""
    order = data.draw(st.permutations(range(num_groups)))
    cuts = data.draw(st.sets(st.integers(1, num_groups - 1))) if num_groups > 1 else set()
    return [list(order[a:b]) for a, b in pairwise([0, *sorted(cuts), num_groups])]


@settings(max_examples=50, deadline=None)
@given(groups_of_any_shape, st.sampled_from(LAYOUTS), st.data())
def test_each_predictor_has_seen_exactly_the_sequence_so_far(
    groups: list[SimpleNamespace], layout: str, data: st.DataObject
) -> None:
    rows = data.draw(st.sampled_from(ROWS) | st.builds(lambda: in_any_rows(data, len(groups))))
    packed = pack(groups, layout=layout, rows=rows)
    rules = [attention_rule(forest) for forest in packed.forests]
    maps = zip(packed.token_rows.tolist(), packed.token_slots.tolist(), packed.predictor_slots.tolist(), strict=True)
    for group in groups:
        for response in group.positives + group.negatives:
            for place, token in enumerate(response):
                row, slot, predictor = next(maps)
                seen = rules[row][predictor].nonzero()[:, 0]
                assert tuple(packed.input_ids[row, seen].tolist()) == group.prompt_ids + response[:place]
                assert packed.position_ids[row, seen].tolist() == list(range(len(seen)))
                assert packed.input_ids[row, slot] == token
                assert packed.position_ids[row, slot] == len(seen)
    assert next(maps, None) is None


@settings(max_examples=50, deadline=None)
@given(groups_of_any_shape, st.sampled_from(LAYOUTS), st.data())
def test_completions_come_group_by_group_positives_first(
    groups: list[SimpleNamespace], layout: str, data: st.DataObject
) -> None:
    packed = pack(groups, layout=layout, rows=in_any_rows(data, len(groups)))
    expected = [response for group in groups for response in group.positives + group.negatives]
    assert packed.token_ids.tolist() == [token for response in expected for token in response]
    assert packed.completion_lengths == tuple(len(response) for response in expected)


@settings(max_examples=50, deadline=None)
@given(groups_of_any_shape, st.sampled_from(LAYOUTS))
def test_a_row_holds_what_is_shared_once(groups: list[SimpleNamespace], layout: str) -> None:
    paths = [(n, g.prompt_ids, r) for n, g in enumerate(groups) for r in g.positives + g.negatives]
    expected = {
        "shared-prompt": sum(len(g.prompt_ids) for g in groups) + sum(len(r) for _, _, r in paths),
        "repeat-prompt-token": sum(len(g.prompt_ids) - 1 for g in groups) + sum(1 + len(r) for _, _, r in paths),
        "block-diagonal": sum(len(p) + len(r) for _, p, r in paths),
        "prefix-tree": len({(p + r)[:n] for _, p, r in paths for n in range(1, len(p + r) + 1)}),
    }
    assert pack(groups, layout=layout, rows="one-row").input_ids.shape == (1, expected[layout])


@settings(max_examples=50, deadline=None)
@given(groups_of_any_shape, st.sampled_from(LAYOUTS), st.integers(0, 9))
def test_rows_filled_by_packed_length_never_overflow(groups: list[SimpleNamespace], layout: str, spare: int) -> None:
    lengths = [
        packed_length(len(g.prompt_ids), [len(r) for r in g.positives + g.negatives], layout=layout) for g in groups
    ]
    limit = max(lengths) + spare
    packed = pack(groups, layout=layout, rows=first_fit_decreasing(lengths, limit), row_length=limit)
    assert packed.input_ids.shape[1] == limit


@settings(max_examples=50, deadline=None)
@given(groups_of_any_shape, st.integers(0, 9))
def test_rows_filled_by_the_slots_of_each_tree_never_overflow(groups: list[SimpleNamespace], spare: int) -> None:
    lengths = [num_prefix_slots([g.prompt_ids + r for r in g.positives + g.negatives]) for g in groups]
    limit = max(lengths) + spare
    packed = pack(groups, layout="prefix-tree", rows=first_fit_decreasing(lengths, limit), row_length=limit)
    assert packed.input_ids.shape[1] == limit


def test_repeating_the_last_prompt_token_splits_the_tree_one_token_earlier() -> None:
    group = SimpleNamespace(prompt_ids=(1, 2), positives=((3,),), negatives=((4, 5),), completion_masks=(), images=())
    packed = pack([group], layout="repeat-prompt-token")
    assert packed.input_ids.tolist() == [[1, 2, 3, 2, 4, 5]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 1, 2, 3]]
    assert packed.predictor_slots.tolist() == [1, 3, 4]
    assert [segment.parent for segment in packed.forests[0].segments] == [None, 0, 0]


def test_sequences_packed_block_by_block_are_roots_with_the_whole_prompt() -> None:
    group = SimpleNamespace(prompt_ids=(1, 2), positives=((3,),), negatives=((4, 5),), completion_masks=(), images=())
    packed = pack([group], layout="block-diagonal")
    assert packed.input_ids.tolist() == [[1, 2, 3, 1, 2, 4, 5]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert packed.predictor_slots.tolist() == [1, 4, 5]
    assert [segment.parent for segment in packed.forests[0].segments] == [None, None]


def test_a_prefix_tree_shares_what_responses_and_groups_have_in_common() -> None:
    """``1 2`` begins all sequences, ``3`` is in the first two responses and ends the third."""
    groups = [
        SimpleNamespace(prompt_ids=(1, 2), positives=((3, 4),), negatives=((3, 5),), completion_masks=(), images=()),
        SimpleNamespace(prompt_ids=(1,), positives=((2, 3),), negatives=((2, 6),), completion_masks=(), images=()),
    ]
    packed = pack(groups, layout="prefix-tree")
    assert packed.input_ids.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 3, 2]]
    assert [segment.parent for segment in packed.forests[0].segments] == [None, 0, 1, 1, 0]
    assert packed.token_slots.tolist() == [2, 3, 2, 4, 1, 2, 1, 5]
    assert packed.predictor_slots.tolist() == [1, 2, 1, 2, 0, 1, 0, 1]


def test_a_one_token_prompt_that_is_repeated_leaves_only_roots() -> None:
    group = SimpleNamespace(prompt_ids=(2,), positives=((3,),), negatives=((4, 5),), completion_masks=(), images=())
    packed = pack([group], layout="repeat-prompt-token")
    assert packed.input_ids.tolist() == [[2, 3, 2, 4, 5]]
    assert [segment.parent for segment in packed.forests[0].segments] == [None, None]


def test_rows_per_group_are_padded_to_the_longest() -> None:
    groups = [
        SimpleNamespace(prompt_ids=(1, 2), positives=((3,),), negatives=((4, 5),), completion_masks=(), images=()),
        SimpleNamespace(prompt_ids=(6,), positives=((7,),), negatives=(), completion_masks=(), images=()),
    ]
    packed = pack(groups, rows="row-per-group", pad_token_id=9)
    assert packed.input_ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 9, 9, 9]]
    assert packed.token_rows.tolist() == [0, 0, 0, 1]
    assert packed.forests[1].segments[-1].parent is None


THREE = [
    SimpleNamespace(prompt_ids=(i,), positives=((10 * i,),), negatives=(), completion_masks=(), images=())
    for i in (1, 2, 3)
]


def test_groups_lie_where_they_are_put_and_the_maps_keep_the_order_given() -> None:
    packed = pack(THREE, rows=[(2, 1), (0,)], row_length=6, pad_token_id=9)
    assert packed.input_ids.tolist() == [[3, 30, 2, 20, 9, 9], [1, 10, 9, 9, 9, 9]]
    assert packed.token_ids.tolist() == [10, 20, 30]
    assert packed.token_rows.tolist() == [1, 0, 0]
    assert packed.predictor_slots.tolist() == [0, 2, 0]


def test_padding_is_a_root_of_its_own() -> None:
    """Nothing sees it and it sees nothing: in the rule of attention its block stands alone."""
    packed = pack(THREE, rows=[(0, 1), (2,)], row_length=7)
    for forest, used in zip(packed.forests, (4, 2), strict=True):
        assert forest.num_slots == 7
        rule = attention_rule(forest)
        assert not rule[used:, :used].any()
        assert not rule[:used, used:].any()


def test_a_full_row_needs_no_padding() -> None:
    packed = pack(THREE, rows=[(0, 1, 2)], row_length=6)
    assert packed.forests[0] == padded(packed.forests[0], 6)
    assert len(packed.forests[0].segments) == 6


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 1)], "group 2 is in no row"),
        ([(0, 1), (1, 2)], "group 1 is in row 0 and in row 1"),
        ([(0, 1, 1, 2)], "group 1 is in row 0 and in row 0"),
        ([(0, 1, 2, 3)], "row 0 holds group 3, but there are groups 0 to 2"),
        ([(-1, 0, 1, 2)], "row 0 holds group -1"),
        ([(0, 1, 2), ()], "row 1 holds no group"),
        ([], "group 0 is in no row"),
    ],
)
def test_every_group_has_to_be_in_one_row(rows: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(THREE, rows=rows)


def test_a_row_over_the_row_length_is_refused_not_cut() -> None:
    with pytest.raises(ValueError, match="row 1 takes 4 slots, more than the row length of 3"):
        pack(THREE, rows=[(0,), (1, 2)], row_length=3)


@pytest.mark.parametrize(("layout", "slots"), [("shared-prompt", 5), ("block-diagonal", 6), ("prefix-tree", 4)])
def test_a_group_over_the_row_length_is_named(layout: str, slots: int) -> None:
    long = SimpleNamespace(prompt_ids=(1,), positives=((2, 3), (2, 4)), negatives=(), completion_masks=(), images=())
    with pytest.raises(ValueError, match=f"^group 1 takes {slots} slots, more than the row length of 3: groups are"):
        pack([THREE[0], long], layout=layout, row_length=3)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            SimpleNamespace(prompt_ids=(), positives=((1,),), negatives=(), completion_masks=(), images=()),
            "group 0 has an empty prompt",
        ),
        (
            SimpleNamespace(prompt_ids=(1,), positives=(), negatives=((1,),), completion_masks=(), images=()),
            "group 0 has no positive response",
        ),
        (
            SimpleNamespace(prompt_ids=(1,), positives=((1,),), negatives=((2,), ()), completion_masks=(), images=()),
            r"empty response negatives\[1\]",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused(group: SimpleNamespace, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack([group])


def test_nothing_to_pack_is_an_error() -> None:
    with pytest.raises(ValueError, match="no group to pack"):
        pack([])


@pytest.mark.parametrize(("choice", "known"), [("layout", LAYOUTS), ("rows", ROWS)])
def test_unknown_choices_list_the_known_ones(choice: str, known: tuple[str, ...]) -> None:
    group = SimpleNamespace(prompt_ids=(1,), positives=((1,),), negatives=(), completion_masks=(), images=())
    with pytest.raises(ValueError, match=f"unknown {choice} 'other': expected one of {', '.join(known)}"):
        pack([group], **{choice: "other"})

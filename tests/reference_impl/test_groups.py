from __future__ import annotations

from types import SimpleNamespace

import pytest

from reference_impl.groups import UnpackedSequence, unpack


def group(prompt, positives, negatives, masks=()) -> SimpleNamespace:
    return SimpleNamespace(
        prompt_ids=prompt, positives=positives, negatives=negatives, completion_masks=masks, images=()
    )


def test_completions_come_group_by_group_positives_first() -> None:
    groups = [group((1,), ((2,), (3,)), ((4,),)), group([5, 6], [[7, 8]], [])]
    assert [sequence.ids for sequence in unpack(groups)] == [(1, 2), (1, 3), (1, 4), (5, 6, 7, 8)]


def test_each_predictor_stands_just_before_its_token() -> None:
    sequence = UnpackedSequence((10, 11, 12), (20, 21))
    assert [sequence.ids[place + 1] for place in sequence.predictors] == [20, 21]
    assert list(sequence.predictors) == [2, 3]


def test_without_masks_every_token_is_supervised() -> None:
    assert [sequence.supervised for sequence in unpack([group((1,), ((2, 3),), ((4,),))])] == [(0, 1), (0,)]


def test_masks_belong_to_completions_in_their_order() -> None:
    masked = group((1,), ((2, 3), (4, 5, 6)), ((7, 8),), [[False, True], [True, False, True], [True, False]])
    assert [sequence.supervised for sequence in unpack([masked])] == [(1,), (0, 2), (0,)]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (((True,),), "group 1 has 1 completion masks for 2 completions"),
        (((True, True), (True,), (True,)), "group 1 has 3 completion masks for 2 completions"),
        (((True, True), (True, True)), r"group 1, completion 1: completion mask of 2 values \(2 True, 0 False\) for 1"),
        (((True,), (True,)), r"group 1, completion 0: completion mask of 1 values \(1 True, 0 False\) for 2 tokens"),
        (((False, False), (True,)), r"completion mask of 2 values \(0 True, 2 False\) for 2 tokens"),
        # An empty mask for one completion must not read as "all of them".
        (((True, True), ()), r"group 1, completion 1: completion mask of 0 values"),
        (((True, 1), (True,)), r"completion mask of 2 values \(1 True, 0 False\) for 2 tokens: expected one bool per"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(masks, message) -> None:
    with pytest.raises(ValueError, match=message):
        unpack([group((1,), ((2,),), ()), group((1,), ((2, 3),), ((4,),), masks)])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "no groups"),
        ([group((1,), (), ())], "group 0 has no completion"),
        ([group((1,), ((2,),), ()), group((), ((2,),), ())], "group 1, completion 0: empty prompt"),
        ([group((1,), ((2,),), ((),))], "group 0, completion 1: empty completion"),
    ],
)
def test_nothing_to_predict_is_an_error(groups, message) -> None:
    with pytest.raises(ValueError, match=message):
        unpack(groups)

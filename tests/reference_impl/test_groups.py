from __future__ import annotations

from types import SimpleNamespace

import pytest

from reference_impl.groups import UnpackedSequence, unpack


def group(prompt, positives, negatives) -> SimpleNamespace:
    return SimpleNamespace(prompt_ids=prompt, positives=positives, negatives=negatives)


def test_completions_come_group_by_group_positives_first() -> None:
    groups = [group((1,), ((2,), (3,)), ((4,),)), group([5, 6], [[7, 8]], [])]
    assert [sequence.ids for sequence in unpack(groups)] == [(1, 2), (1, 3), (1, 4), (5, 6, 7, 8)]


def test_each_predictor_stands_just_before_its_token() -> None:
    sequence = UnpackedSequence((10, 11, 12), (20, 21))
    assert [sequence.ids[place + 1] for place in sequence.predictors] == [20, 21]
    assert list(sequence.predictors) == [2, 3]


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

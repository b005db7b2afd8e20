"""A preference group holds what a trainer could feed: no empty part, no id outside the vocabulary."""

from __future__ import annotations

import re
from typing import Any

import pytest

from verify.groups import PreferenceGroup, check_token_ids, tokens_taking_part
from verify.objective import Preference


def test_completions_come_positives_first() -> None:
    group = PreferenceGroup((1,), ((2,), (3, 4)), ((5,), (6,)))
    assert group.completions == ((2,), (3, 4), (5,), (6,))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (((), ((1,),)), "empty prompt (f:1): a group needs at least one prompt token"),
        (((1,), ()), "no positive response (f:1): a group needs at least one"),
        (((1,), ((2,), ())), "empty response positives[1] (f:1): a response needs at least one token"),
        (((1,), ((2,),), ((),)), "empty response negatives[0] (f:1): a response needs at least one token"),
        (((1, -1), ((2,),)), "token id -1 (f:1): token ids are non-negative integers"),
        (((1,), ((2.0,),)), "token id 2.0 (f:1): token ids are non-negative integers"),
        (((1,), ((2,),), ((True,),)), "token id True (f:1): token ids are non-negative integers"),
    ],
)
def test_a_group_that_could_not_be_fed_is_refused(parts: Any, message: str) -> None:
    prompt_ids, positives, negatives = (*parts, ())[:3]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        PreferenceGroup(prompt_ids, positives, negatives, source="f:1")


def test_the_place_in_a_file_is_no_part_of_the_data() -> None:
    assert PreferenceGroup((1,), ((2,),), source="a:1") == PreferenceGroup((1,), ((2,),), source="b:2")


@pytest.mark.parametrize(
    ("group", "place"),
    [
        (PreferenceGroup((0, 9), ((1,),), ((2,),)), "group 1, prompt_ids[1]"),
        (PreferenceGroup((0,), ((1,), (2, 3, 9)), ((2,),)), "group 1, positives[1][2]"),
        (PreferenceGroup((0,), ((1,),), ((9,),), source="f:7"), "f:7, negatives[0][0]"),
    ],
)
def test_an_id_outside_the_vocabulary_is_named_by_place(group: PreferenceGroup, place: str) -> None:
    fine = PreferenceGroup((0,), ((8,),), ((8,),))
    check_token_ids([fine, group], vocab_size=10)
    with pytest.raises(ValueError, match=re.escape(f"token id 9 at {place}: outside the vocabulary of 9 tokens")):
        check_token_ids([fine, group], vocab_size=9)


@pytest.mark.parametrize("beta", [0.0, -0.1, float("inf"), float("nan")])
def test_a_beta_that_is_not_positive_and_finite_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match=r"beta is .*: it must be a positive number"):
        Preference(beta=beta)


@pytest.mark.parametrize("smoothing", [-0.01, 0.46, 0.5, 0.7, float("nan")])
def test_a_label_smoothing_outside_its_range_is_refused(smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"label_smoothing is .*: it must lie in \[0, 0\.45\]"):
        Preference(label_smoothing=smoothing)


def test_tokens_take_part_up_to_the_last_that_is_supervised() -> None:
    pair = PreferenceGroup((1, 2), ((3, 4),), ((3, 5, 6),))
    assert tokens_taking_part([pair], is_reward_model=False) == {1, 2, 3, 5}
    assert tokens_taking_part([pair], is_reward_model=True) == {1, 2, 3, 4, 5, 6}
    turns = PreferenceGroup((1,), ((2, 3, 4, 5),), completion_masks=((True, False, True, False),))
    assert tokens_taking_part([turns], is_reward_model=False) == {1, 2, 3}
    first_alone = PreferenceGroup((1,), ((2, 3),), completion_masks=((True, False),))
    assert tokens_taking_part([first_alone], is_reward_model=False) == {1}
    assert tokens_taking_part([turns, pair], is_reward_model=False) == {1, 2, 3, 5}

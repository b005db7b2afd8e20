"""Wrong trainers of groups, trees of turns and supervised examples: the stage that is named, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from verify.cases import Case
from verify.default_cases.tiny import tiny_cases
from verify.diagnosis.cases import diagnostic_cases, kinds_to_try
from verify.diagnosis.diagnose import Diagnosis, Diagnostician
from verify.diagnosis.tokens import path_ids, path_numbers, tracked_tokens
from verify.groups import PreferenceGroup

Wrong = Callable[[str], Any]
Diagnosed = Callable[..., Diagnosis]
GROUPS, TOKEN_MEAN, EXAMPLE_MEAN = "diagnosis-groups", "diagnosis-sft-token-mean", "diagnosis-sft-example-mean"
CASES = {case.name: case for case in diagnostic_cases(257, 0, kinds_to_try([], ("pairs", "groups", "examples")))[0]}


@pytest.fixture(scope="session")
def diagnosed(diagnostician: Diagnostician, wrong_tree: Wrong) -> Diagnosed:
    """Diagnosed on one of the cases made for it, as if it had failed there alone."""
    return cache(lambda name, case: diagnostician.diagnose(wrong_tree(name), [CASES[case]]))


# tests/benchmarks/bench_diagnosis.py runs all of them.
@pytest.mark.parametrize(
    ("name", "case", "said"),
    [
        ("UnsupervisedDropped", TOKEN_MEAN, "never fed to the model: tokens 6 to 9 of the chosen response of group 0;"),
        ("ParentOnly", GROUPS, "do not attend to all of the prompt of group 0"),
        ("PositionsFromTheParent", TOKEN_MEAN, "positions are off by -10 at tokens 11 to 16 of positive 0 of group 2;"),
        ("SharedFromACache", GROUPS, "going back, gradients of hidden states differ from layer 1 v_proj on"),
        ("NeighbourPredictsForks", GROUPS, "token 13 of negative 0 of group 0 from token 17 of positive 0 of group 0"),
        ("MaskIgnored", GROUPS, "counted though not supervised: tokens 5 to 10 of the rejected response of group 2"),
        ("MaskIgnored", TOKEN_MEAN, "loss and gradient are those of another one: tokens that are not supervised count"),
        ("NextSequenceLearned", TOKEN_MEAN, "the loss is another one: the end of each sequence predicts the start"),
        ("SharedLearnedOnce", TOKEN_MEAN, "tokens that several responses share count once"),
        ("DividedByWholeLength", GROUPS, "each reward is the right one over the whole length of its response"),
        ("MeanOfTurns", EXAMPLE_MEAN, "the mean of the means of their runs of supervised tokens"),
        ("HardestNegative", GROUPS, "each positive against the best negative only"),
        ("ExamplesAlike", TOKEN_MEAN, "the mean over examples, not over all tokens of the batch"),
        ("LastExampleLost", EXAMPLE_MEAN, "of 8 responses number 7 weighs 0 times what it should"),
        ("GroupsByResponses", GROUPS, "groups weigh 1.5, 0.6, 0.9 times what they should, in loss and gradient alike"),
        ("EndsWithoutGradient", GROUPS, "of 10 responses number 1 weighs 0 times what it should in the gradient"),
    ],
)
def test_the_wrong_stage_is_named_first_and_where(
    name: str, case: str, said: str, diagnosed: Diagnosed, wrong_tree: Wrong
) -> None:
    found = diagnosed(name, case)
    assert found.case == case
    assert found.suspects[0].stage == wrong_tree(name).stage
    assert said in found.suspects[0].because
    assert found.patterns


@pytest.mark.parametrize("name", ["TreeTrainer", "SequenceTrainer"])
def test_a_right_trainer_is_not_diagnosed(name: str, diagnostician: Diagnostician, wrong_tree: Wrong) -> None:
    found = diagnostician.diagnose(wrong_tree(name), [])
    assert found == Diagnosis(notes=tuple(f"no value differs on case {case}" for case in CASES if case != "diagnosis"))


def test_only_forks_differ_where_a_neighbour_predicts_them(diagnosed: Diagnosed) -> None:
    sentences = [pattern.sentence for pattern in diagnosed("NeighbourPredictsForks", GROUPS).patterns]
    assert "only first tokens behind a fork differ, where sequences that began alike part" in " ".join(sentences)


def test_supervised_examples_have_no_frozen_policy_to_speak_of(diagnosed: Diagnosed) -> None:
    for name in ("SharedLearnedOnce", "UnsupervisedDropped"):
        said = " ".join(pattern.sentence for pattern in diagnosed(name, TOKEN_MEAN).patterns)
        assert "frozen" not in said
        assert "reward" not in said


def test_a_case_that_failed_is_taken_where_none_that_is_made_shows_the_fault(
    diagnostician: Diagnostician, wrong_tree: Wrong
) -> None:
    (case,) = [case for case in tiny_cases(257, 0) if case.name == "rollouts-of-one-prompt"]
    found = diagnostician.diagnose(OnTinyOnly(wrong_tree("SharedLearnedOnce")), [case])
    assert found.notes[0].startswith("not run on case diagnosis-sft-token-mean: ")
    assert found.case == case.name
    assert found.suspects[0].stage == "supervision"


class OnTinyOnly:
    """Another trainer, which takes no case that a diagnosis makes."""

    name, takes = "on-tiny-only", ("examples",)

    def __init__(self, of: Any) -> None:
        self.per_token_logps, self.loss = of.per_token_logps, of.loss

    def supports(self, case: Case) -> Any:
        return type("Support", (), {"supported": "diagnosis" not in case.name, "reason": "made up"})


def test_takes_that_is_wrong_is_said(diagnostician: Diagnostician) -> None:
    subject = type("Odd", (), {"name": "odd", "takes": ("everything",), "per_token_logps": None})()
    (note,) = diagnostician.diagnose(subject, []).notes
    assert "takes is ('everything',)" in note


@pytest.mark.parametrize("name", CASES)
def test_in_the_cases_that_are_made_an_id_says_which_token_it_is(name: str) -> None:
    groups = CASES[name].groups
    numbers = {number for path in path_numbers(groups) for number in path}
    tokens = tracked_tokens(groups)
    assert len(tokens) == len(numbers)
    for group in groups:
        for ids in group.completions:
            whole = (*group.prompt_ids, *ids)
            assert [path_ids(tokens[token], groups) for token in whole] == [whole[: n + 1] for n in range(len(whole))]


def test_the_cases_that_are_made_have_what_faults_need() -> None:
    assert {name: case.kind for name, case in CASES.items()} == {
        "diagnosis": "pairs", GROUPS: "groups", TOKEN_MEAN: "examples", EXAMPLE_MEAN: "examples",
    }  # fmt: skip
    for name in (GROUPS, TOKEN_MEAN, EXAMPLE_MEAN):
        groups = CASES[name].groups
        assert any(False in mask for group in groups for mask in group.completion_masks)
        assert any(len({ids[0] for ids in group.completions}) < len(group.completions) for group in groups)
    assert CASES[GROUPS].groups[0].prompt_ids[:6] == CASES[GROUPS].groups[1].prompt_ids[:6]
    assert len({(len(g.positives), len(g.negatives)) for g in CASES[GROUPS].groups}) > 1


def test_a_token_that_two_responses_share_is_one_token() -> None:
    groups = [PreferenceGroup((1, 2), ((3, 4), (3, 5)), ((6,),)), PreferenceGroup((1, 7), ((3,),), ((8,),))]
    assert path_numbers(groups) == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 5], [0, 6, 7], [0, 6, 8]]
    tokens = tracked_tokens(groups)
    assert 3 not in tokens  # behind 1 2 and behind 1 7
    assert (tokens[1].group, tokens[1].completion, tokens[1].index) == (0, None, 0)


def test_pairs_come_first_where_they_fail_too() -> None:
    cases = tiny_cases(257, 0)
    assert kinds_to_try(cases, ())[0] == ("pairs", "sigmoid")
    assert kinds_to_try([c for c in cases if c.kind == "examples"], ()) == (
        ("examples", "sft-token-mean"), ("examples", "sft-example-mean"),
    )  # fmt: skip

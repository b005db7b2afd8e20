"""Wrong subjects from end to end: the stage that is named, and what is said about where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verify.default_cases.tiny import tiny_cases
from verify.diagnosis.cases import CASE_NAME
from verify.diagnosis.diagnose import Diagnosis, Diagnostician
from verify.diagnosis.measurement import leave_one_out
from verify.diagnosis.study import Workbench
from verify.faults.catalogue import mutation_named
from verify.faults.fault import Fault
from verify.subject import Subject, Support
from verify.subjects.faulty import FaultySubject

Wrong = Callable[[str], Any]
Diagnosed = Callable[[str], Diagnosis]


# One for every stage; tests/benchmarks/bench_diagnosis.py runs all of them.
@pytest.mark.parametrize(
    "name",
    [
        "SeparatorInFront",
        "PromptEndHidden",
        "PositionsCapped",
        "FeedForwardOff",
        "KeysDetached",
        "FirstFromFirst",
        "EveryFourthUncounted",
        "Temperature",
        "Averaged",
        "ReferenceUnmasked",
        "ReferenceOfAnother",
        "Hinge",
        "WeighedByPrompt",
        "GradientsClippedOneByOne",
    ],
)
def test_the_wrong_stage_is_named_first(name: str, diagnosed: Diagnosed, wrong: Wrong) -> None:
    found = diagnosed(name)
    assert found.case == CASE_NAME
    assert found.suspects[0].stage == wrong(name).stage
    assert found.suspects[0].because
    assert found.patterns


def test_a_right_subject_is_not_diagnosed(diagnostician: Diagnostician, wrong: Wrong) -> None:
    assert diagnostician.diagnose(wrong("Trainer"), []) == Diagnosis(notes=("no value differs on case diagnosis",))


def test_the_stage_is_named_without_the_fault_itself_in_the_catalogue(
    diagnostician: Diagnostician, few_faults: tuple[Fault, ...]
) -> None:
    attributions = list(leave_one_out(diagnostician, [], faults=few_faults))
    assert [a.name for a in attributions] == [fault.name for fault in few_faults]
    assert all(a.right for a in attributions), [(a.name, a.named) for a in attributions]
    assert all(a.name not in [near.fault.name for near in a.diagnosis.nearest] for a in attributions)


def test_a_loss_that_shows_no_log_probs_is_at_no_distance_from_the_fault_that_it_has(
    diagnostician: Diagnostician, wrong: Wrong
) -> None:
    """The log-probs that the runner asked for apart are right, and say nothing of the reference pass in the loss."""

    class Silent(type(wrong("AdaptersOnInReference"))):  # type: ignore[misc]
        def loss(self, model: Any, groups: Any, objective: Any) -> Any:
            output = super().loss(model, groups, objective)
            return SimpleNamespace(loss=output.loss, rewards=output.rewards)

    nearest = diagnostician.diagnose(Silent(), []).nearest[0]
    assert nearest.fault.name == "reference-with-adapters-on"
    assert nearest.distance < 1e-3


def test_a_subject_with_a_bug_of_the_catalogue_is_at_no_distance_from_it(diagnosed: Diagnosed) -> None:
    """Written by somebody else, in another packing, on another path through the model."""
    for subject, fault in (("Averaged", "mean-instead-of-sum"), ("RunningPositions", "positions-run-on")):
        found = diagnosed(subject)
        assert found.nearest[0].fault.name == fault
        assert found.nearest[0].distance < 1e-3
        assert found.suspects[0].because.startswith(f"the planted fault {fault} has the same signature")


def test_what_attends_to_what_is_said_by_segment(diagnosed: Diagnosed) -> None:
    found = diagnosed("PromptEndHidden")
    assert "all of the rejected response of group 0" in found.suspects[0].because
    assert "do not attend to token 18 of the prompt of group 0" in found.suspects[0].because


def test_a_prediction_from_the_wrong_slot_names_the_slot(diagnosed: Diagnosed) -> None:
    found = diagnosed("FirstFromFirst")
    assert (
        "token 0 of the chosen response of group 0 from token 0 of the prompt of group 0" in found.suspects[0].because
    )
    assert found.first_layer.endswith("the fault lies behind the decoder")


def test_the_first_layer_that_differs_is_the_one_that_was_changed(diagnosed: Diagnosed) -> None:
    assert diagnosed("FeedForwardOff").first_layer.startswith("layer 0 attention agrees; layer 0 mlp differs")
    assert diagnosed("LastLayerRounded").first_layer.startswith("layer 0 mlp agrees; layer 1 attention differs")


def test_the_subject_is_the_odd_one_out(diagnosed: Diagnosed) -> None:
    said = diagnosed("Temperature").odd_one_out
    assert said.startswith("unpacked, dense, sparse and split agree; temperature differs by up to")
    assert diagnosed("Averaged").odd_one_out.endswith("split and averaged agree")


class NotANumber:
    """NaN at one token of the second pair."""

    name = "not-a-number"

    def __init__(self, right: Subject) -> None:
        self._right = right

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        logps = list(self._right.per_token_logps(model, groups))
        logps[2] = torch.where(torch.arange(len(logps[2])) == 3, torch.nan, logps[2])
        return logps


def test_a_value_that_is_not_finite_is_placed(diagnostician: Diagnostician, wrong: Wrong) -> None:
    found = diagnostician.diagnose(NotANumber(wrong("Trainer")), [])
    assert found.patterns[0].sentence.endswith("the first at token 3 of the chosen response of group 1")
    assert found.suspects[0].stage == "token_logps"


class SaysNo(NotANumber):
    """Takes one case only, as a trainer that needs prompts of one length."""

    name = "says-no"

    def supports(self, case: Any) -> Support:
        return Support(case.name != CASE_NAME, "needs prompts of one length")


def test_a_case_that_the_subject_does_not_take_is_left_out(diagnostician: Diagnostician, wrong: Wrong) -> None:
    (case,) = [case for case in tiny_cases(257, 0) if case.name == "two-groups"]
    found = diagnostician.diagnose(SaysNo(wrong("Trainer")), [case])
    assert found.notes[0] == "not run on case diagnosis: needs prompts of one length"
    assert found.case == "two-groups"


class Raises:
    name = "raises"

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        raise self._error


@pytest.mark.parametrize("error", [RuntimeError("no kernel"), SystemExit(0)])
def test_a_subject_that_raises_ends_no_diagnosis(error: BaseException, diagnostician: Diagnostician) -> None:
    found = diagnostician.diagnose(Raises(error), [])
    assert found.suspects == ()
    assert f"raised {type(error).__name__}" in found.notes[0]


class ChangesWeights:
    name = "changes-weights"

    def __init__(self, right: Subject) -> None:
        self._right = right

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        next(iter(model.parameters())).data.mul_(1.01)
        return self._right.per_token_logps(model, groups)


def test_a_subject_that_changes_the_model_spoils_no_other(diagnostician: Diagnostician, wrong: Wrong) -> None:
    found = diagnostician.diagnose(ChangesWeights(wrong("Trainer")), [])
    assert "changed the model" in found.notes[-1]
    assert diagnostician.diagnose(wrong("Trainer"), []).notes == ("no value differs on case diagnosis",)


@pytest.fixture(scope="module")
def windowed(bench: Workbench) -> Diagnostician:
    """On a model whose window is shorter than a response."""
    request = replace(bench.request, name="tiny-mistral")
    return Diagnostician(replace(bench, request=request, variations=("eager",), faults=()))


def test_a_mask_without_the_window_of_the_model_is_the_window(windowed: Diagnostician, wrong: Wrong) -> None:
    suspect = windowed.diagnose(wrong("Trainer"), []).suspects[0]
    assert suspect.stage == "window"
    assert suspect.because.endswith("a window of the model")


def test_a_mask_with_the_window_of_the_model_is_not_suspected(windowed: Diagnostician, wrong: Wrong) -> None:
    class Windowed(type(wrong("RunningPositions"))):  # type: ignore[misc]
        def visible(self, t: Any) -> Any:
            places = super(type(wrong("RunningPositions")), self).positions(t)
            return super().visible(t) & (places[:, None] - places[None, :] < 8)

    suspects = windowed.diagnose(Windowed(), []).suspects
    assert suspects[0].stage == "positions"
    assert "mask" not in [suspect.stage for suspect in suspects]


def test_a_mask_rebuilt_from_ids_is_suspected_where_recurring_tokens_are_not_followed(
    diagnostician: Diagnostician, wrong: Wrong
) -> None:
    """Visibility is right for all tokens that occur once."""

    class HidesRepeats(type(wrong("Trainer"))):  # type: ignore[misc]
        name = "hides-repeats"

        def visible(self, t: Any) -> Any:
            repeats = (t.ids[:, None] == t.ids[None, :]).tril(-1).any(1)
            return super().visible(t) & ~(repeats[None, :] & ~torch.eye(len(t.ids), dtype=torch.bool))

    (case,) = [case for case in tiny_cases(257, 0) if case.name == "five-uneven-groups"]
    found = diagnostician.diagnose(HidesRepeats(), [case])
    assert found.case == case.name
    assert [suspect.stage for suspect in found.suspects[:2]] == ["mask", "activations"]


def test_a_fault_that_needs_another_case_is_diagnosed_there(diagnostician: Diagnostician) -> None:
    (case,) = [case for case in tiny_cases(257, 0) if case.name == "special-ids-inside"]
    found = diagnostician.diagnose(FaultySubject(mutation=mutation_named("token-zero-not-counted")), [case])
    assert found.case == case.name
    assert found.notes[0] == "no value differs on case diagnosis"
    assert found.suspects[0].stage == "supervision"

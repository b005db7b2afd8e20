"""From results of the gate to records: who is diagnosed, on what, and who is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from verify.cases import Case
from verify.checks.cases import check_cases
from verify.checks.check import Finding
from verify.default_cases.images import image_cases
from verify.default_cases.objectives import objective_cases
from verify.default_cases.references import reference_cases
from verify.diagnosis import run
from verify.diagnosis.run import Diagnoses, diagnose_failures
from verify.faults.catalogue import mutation_named
from verify.faults.fault import Fault
from verify.gate import GateRequest, Result, run_gate
from verify.groups import PreferenceGroup
from verify.images import ImageFormat
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.subjects.packed import PackedSubject
from verify.tolerance import Policy
from verify.verdict import Verdict

Diagnose = Callable[..., Diagnoses]
JUDGED = ("ByHand", "Raises", "SaysNo", "CausalMaskOnly", "NanAtOneToken", "NeighbourPredicts", "MeanInsteadOfSum")


@pytest.fixture(scope="session")
def request_for(policy: Policy, two_pairs_case: Case) -> Callable[..., GateRequest]:
    def make(subjects: Sequence[Subject], dtypes: tuple[str, ...] = ("float32",)) -> GateRequest:
        return GateRequest(
            model=ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)),
            dtypes=dtypes,
            subjects=tuple(subjects),
            cases=(two_pairs_case,),
            objective=Preference(beta=0.1),
            policy=policy,
            variations=("eager", "padded-left"),
        )

    return make


@pytest.fixture(scope="session")
def results(request_for: Callable[..., GateRequest], third_party: Callable[[str], Subject]) -> tuple[Result, ...]:
    """Of one run of the gate over all subjects of these tests."""
    request = request_for([third_party(name) for name in JUDGED])
    return run_gate(request, lambda done, total, text: None).results


@pytest.fixture
def diagnose(
    few_faults: tuple[Fault, ...],
    request_for: Callable[..., GateRequest],
    results: tuple[Result, ...],
    third_party: Callable[[str], Subject],
) -> Diagnose:
    """Diagnose the subjects named, from the results of the one run, or of those given."""

    def run_it(
        *names: str, instead: Sequence[Result] = (), findings: Sequence[Finding] = (), large: bool = False
    ) -> Diagnoses:
        return diagnose_failures(
            request_for([third_party(name) for name in names]),
            instead or results,
            lambda done, total, text: None,
            large=large,
            reproductions={("causal-mask-only", "float32"): "reproductions/0"},
            findings=findings,
            faults=few_faults,
        )

    return run_it


def test_nothing_is_diagnosed_where_nothing_failed(diagnose: Diagnose, results: tuple[Result, ...]) -> None:
    verdicts = [result.verdict for result in results][:3]
    assert verdicts == [Verdict.PASS, Verdict.ERROR, Verdict.NOT_APPLICABLE]
    assert diagnose("ByHand", "Raises", "SaysNo") == Diagnoses()


def test_a_failure_becomes_a_record(diagnose: Diagnose) -> None:
    (record,) = diagnose("ByHand", "CausalMaskOnly").records
    assert (record.subject, record.dtype, record.case) == ("causal-mask-only", "float32", "diagnosis")
    assert record.stages[0].stage == "mask"
    assert record.worst.startswith("case two-pairs, ")
    assert "times the budget" in record.worst
    assert record.reproduction == "reproductions/0"
    assert record.patterns[0].startswith("all tokens but the first differ in the rejected response")


def test_a_value_that_is_not_a_number_can_be_recorded(diagnose: Diagnose) -> None:
    (record,) = diagnose("NanAtOneToken").records
    assert "nan" in record.worst
    assert record.stages[0].stage == "token_logps"
    assert type(record).model_validate_json(record.model_dump_json()) == record


def test_a_large_model_is_left_alone(diagnose: Diagnose) -> None:
    (record,) = diagnose("NeighbourPredicts", large=True).records
    assert record.stages[0].stage == "predictors"
    assert record.notes[0].startswith("the subject was run again on the tiny model")


def test_only_so_many_subjects_are_diagnosed(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "AT_MOST", 1)
    found = diagnose("NeighbourPredicts", "MeanInsteadOfSum")
    assert [record.subject for record in found.records] == ["neighbour-predicts"]
    assert found.notes == ("at most 1 subjects are diagnosed in a run; not diagnosed: mean-instead-of-sum",)


def test_the_most_exact_dtype_in_which_it_fails_is_taken(diagnose: Diagnose, results: tuple[Result, ...]) -> None:
    in_float64 = [replace(result, dtype="float64") for result in results]
    (record,) = diagnose("NeighbourPredicts", instead=[*results, *in_float64]).records
    assert record.dtype == "float64"
    assert record.notes == ["it fails in float32 too"]


def test_a_failure_in_bfloat16_is_diagnosed_in_float32(diagnose: Diagnose, results: tuple[Result, ...]) -> None:
    (record,) = diagnose("NeighbourPredicts", instead=[replace(result, dtype="bfloat16") for result in results]).records
    assert record.dtype == "bfloat16"
    assert record.notes == ["diagnosed in float32, where it fails too"]


def test_a_subject_that_does_not_fail_again_keeps_what_the_gate_saw(
    diagnose: Diagnose, results: tuple[Result, ...]
) -> None:
    """As one that is wrong now and then: the results of another subject stand for what the gate saw of it."""
    wrong_once = [replace(result, subject="by-hand") for result in results if result.subject == "neighbour-predicts"]
    (record,) = diagnose("ByHand", instead=wrong_once).records
    assert record.case == "two-pairs"
    assert record.stages == []
    assert record.worst.startswith("case two-pairs")
    assert record.notes[-1].startswith("the subject did not fail again")


POSITIONS = Finding(
    check="absolute-positions",
    subject="by-hand",
    dtype="float32",
    case="distinct-tokens",
    verdict=Verdict.FAIL,
    reason="group 0, chosen, token 1: -3, unpacked -2",
    num_compared=9,
    num_differing=2,
    ratio=4.0,
)


def test_a_subject_that_fails_by_exact_checks_alone_is_diagnosed_by_them(diagnose: Diagnose) -> None:
    (record,) = diagnose("ByHand", findings=[POSITIONS, replace(POSITIONS, subject="another")]).records
    assert (record.subject, record.dtype, record.case) == ("by-hand", "float32", "distinct-tokens")
    assert [(stage.stage, stage.because) for stage in record.stages] == [("positions", record.worst)]
    assert record.worst == (
        "exact check absolute-positions on case distinct-tokens: group 0, chosen, token 1: -3, unpacked -2"
    )
    first, *cases = record.notes
    assert first == "no value compared is beyond its budget: this is what the exact checks prove, on cases of their own"
    (groups,) = [re.findall(r"prompt ([\d ]+), chosen ([\d ]+), rejected ([\d ]+)", note) for note in cases]
    distinct = check_cases(257, 0).by_name["distinct-tokens"]
    assert [[tuple(map(int, ids.split())) for ids in group] for group in groups] == [
        [group.prompt_ids, *group.positives, *group.negatives] for group in distinct.groups
    ]
    assert diagnose("ByHand", findings=[replace(POSITIONS, verdict=Verdict.ERROR)]) == Diagnoses()


def test_what_fails_by_values_is_diagnosed_before_what_fails_by_exact_checks_alone(diagnose: Diagnose) -> None:
    found = diagnose("ByHand", "CausalMaskOnly", findings=[POSITIONS]).records
    assert [record.subject for record in found] == ["causal-mask-only", "by-hand"]


# Other models than the causal LM of the run with its adapters off.

OVER_ADAPTER = next(case for case in reference_cases(257, 0) if case.name == "reference-frozen-adapter")
SEPARATE = next(case for case in reference_cases(257, 0) if case.reference == "separate-model")
OF_REWARDS = next(case for case in objective_cases(257, 0) if case.objective_name == "reward-model")
OF_IMAGES = next(case for case in image_cases(257, 0, ImageFormat((3, 12, 12), 257, 9)) if len(case.groups) == 3)


@pytest.mark.parametrize(
    ("name", "case", "on", "stages", "near"),
    [
        ("prompt-embedding-gradient-averaged", SEPARATE, "diagnosis", ["activations", "gradients"], []),
        ("frozen-adapter-ignored", OVER_ADAPTER, "diagnosis", ["reference"], ["frozen-adapter-ignored"]),
        ("reward-pairs-summed", OF_REWARDS, "diagnosis-groups-reward-model", ["objective", "accumulation"], []),
        ("reward-head-learns-from-chosen", OF_REWARDS, "diagnosis-groups-reward-model", ["scores"], []),
        ("images-left-out", OF_IMAGES, "image-beside-text", ["layout"], ["images-left-out"]),
    ],
)
def test_a_failure_is_diagnosed_on_the_model_that_it_failed_on(
    name: str,
    case: Case,
    on: str,
    stages: list[str],
    near: list[str],
    request_for: Callable[..., GateRequest],
) -> None:
    """Without a fault of the same signature the stage follows from what differs."""
    subject, fault = FaultySubject(mutation=mutation_named(name)), mutation_named(name)
    with_images = ModelRequest(name="tiny-llava", lora=LoraSpec(strength=0.3))
    request = replace(request_for([subject]), cases=(case,), model_with_images=with_images if case.has_images else None)
    if fault.trains == ("all",):
        request = replace(request, model=replace(request.model, train="all", reference="separate-model"))
    results = run_gate(request, lambda done, total, text: None).results
    assert [result.verdict for result in results] == [Verdict.FAIL]
    assert isinstance(fault, Fault)
    (record,) = diagnose_failures(
        request,
        results,
        lambda done, total, text: None,
        large=False,
        reproductions={},
        faults=(fault,) if near else (),
    ).records
    assert record.case == on
    assert [stage.stage for stage in record.stages][: len(stages)] == stages
    assert [each.fault for each in record.nearest] == near


class TwiceTheRouters:
    """The honest step with twice the coefficient."""

    name = "twice-the-routers"
    adds_router_loss = True

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        return PackedSubject(backend="dense-sdpa").per_token_logps(model, groups)

    def loss(self, model: Any, groups: Sequence[PreferenceGroup], objective: Any) -> Any:
        twice = replace(objective, router_aux_loss_coef=2 * objective.router_aux_loss_coef)
        return PackedSubject(backend="dense-sdpa").loss(model, groups, twice)


@pytest.mark.parametrize(
    ("subject", "stage", "because"),
    [
        (FaultySubject(mutation=mutation_named("routers-count-prompts-once")), "routers", "the balance of the routers"),
        (TwiceTheRouters(), "routers", "without the loss of the routers no value differs"),
        (FaultySubject(mutation=mutation_named("causal-mask-only")), "mask", "the planted fault causal-mask-only has"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_under_the_loss_of_routers_what_else_is_wrong_is_told_from_that_loss(
    subject: Subject, stage: str, because: str, request_for: Callable[..., GateRequest], few_faults: tuple[Fault, ...]
) -> None:
    request = replace(
        request_for([subject]),
        model=ModelRequest(name="tiny-qwen3-moe", num_layers=1, lora=LoraSpec(strength=0.3)),
        objective=Preference(router_aux_loss_coef=0.01),
    )

    def ignore(done: int, total: int, text: str) -> None:
        pass

    results = run_gate(request, ignore).results
    (record,) = diagnose_failures(request, results, ignore, large=False, reproductions={}, faults=few_faults).records
    assert record.stages[0].stage == stage
    assert record.stages[0].because.startswith(because)
    again = "run again without the loss of routers, where it fails too"
    assert (again in record.notes) == (stage == "mask")

"""What a run is said not to have seen is held against what the faults and cases themselves are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from reports.record_faults import BlindSpotRecord
from verify.cases import Case
from verify.default_cases.tiny import tiny_cases
from verify.faults.catalogue import FAULTS, biting_cases, mutation_named
from verify.gate import GateOutcome, GateRequest, Result
from verify.judgement import Judgement
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.proof_of_life.blind_spots import blind_spots
from verify.subject import kinds_taken, support_for
from verify.subjects.faulty import FaultySubject
from verify.subjects.selection import select_subject
from verify.tolerance import Policy
from verify.verdict import Verdict

CASES = tiny_cases(257, seed=0)
CONFIG = SimpleNamespace(num_attention_heads=4, head_dim=32, hidden_size=64, num_hidden_layers=2)
ONLY_IN_GRADIENTS = [fault for fault in FAULTS if "forward quantities" in fault.invisible_where]


@pytest.fixture
def spots(policy: Policy) -> Callable[..., list[BlindSpotRecord]]:
    """The blind spots of a run of which every subject passed on every case that it takes."""

    def find(
        cases: Sequence[str], subjects: Sequence[str] = ("fault:none",), config: object = CONFIG, **changes: Any
    ) -> list[BlindSpotRecord]:
        settings: dict[str, Any] = {
            "model": ModelRequest(name="tiny"), "dtypes": ("float32",), "policy": policy,
            "subjects": tuple(select_subject(name) for name in subjects),
            "cases": tuple(case for case in CASES if case.name in cases),
            "objective": Preference(beta=0.1, label_smoothing=0.1),
        }  # fmt: skip
        request = GateRequest(**(settings | changes))
        results = [
            passed(subject.name, case, dtype)
            for dtype in request.dtypes
            for case in request.cases
            for subject in request.subjects
            if support_for(subject, case).supported
        ]
        return list(blind_spots(request, results, config))

    return find


def passed(subject: str, case: Case, dtype: str) -> Result:
    judgement = SimpleNamespace(quantity="per_token_logps", verdict=Verdict.PASS, num_compared=1, reason="")
    return Result(
        case=case.name, subject=subject, dtype=dtype, verdict=Verdict.PASS, reasons=(),
        judgements=(as_judgement(judgement),),
    )  # fmt: skip


def as_judgement(stand_in: Any) -> Judgement:
    judgement: Judgement = stand_in
    return judgement


@pytest.mark.parametrize("case", [case.name for case in CASES])
def test_on_one_case_every_fault_is_named_for_its_kind_or_for_another(
    spots: Callable[..., list[BlindSpotRecord]], case: str
) -> None:
    (only,) = (one for one in CASES if one.name == case)
    of_case = {spot.what: spot.faults for spot in spots([case]) if spot.what.startswith(f"faults on {only.kind} ")}
    named = [fault for faults in of_case.values() for fault in faults]
    assert sorted(named) == sorted(f.name for f in FAULTS if only.kind in f.kinds and not f.bites(only))
    others = {fault for spot in spots([case]) if spot.what not in of_case for fault in spot.faults}
    assert others == {fault.name for fault in FAULTS if set(fault.kinds) - {only.kind}}


def test_the_default_cases_leave_no_fault_without_a_case_of_every_kind_that_it_is_planted_on(
    spots: Callable[..., list[BlindSpotRecord]],
) -> None:
    assert spots([case.name for case in CASES]) == []


def test_faults_of_one_condition_are_one_kind_in_its_words(spots: Callable[..., list[BlindSpotRecord]]) -> None:
    found = {spot.what: spot for spot in spots(["balanced"])}
    beyond = found["faults on pairs that bite only where positions go beyond 256"]
    assert beyond.faults == ["positions-in-bfloat16", "positions-wrap-at-256"]
    assert beyond.why == "no case that was judged has it"


def test_a_subject_that_took_part_of_the_cases_has_blind_spots_of_its_own(
    spots: Callable[..., list[BlindSpotRecord]],
) -> None:
    names = ["fault:none", "dense-sdpa/row-per-group", "split/row-per-group"]
    (spot,) = spots([case.name for case in CASES], names)
    assert spot.what.startswith("faults of dense-sdpa/row-per-group and split/row-per-group that ")
    several = [case for case in CASES if len(case.groups) > 1 and case.kind != "examples"]
    judged = rf"judged on {len(several)} of {len(CASES)} cases; "
    assert re.fullmatch(judged + r"not seen: (on [a-z ]+ where [^;]+; ){3}and \d+ more", spot.why)
    assert sorted(spot.faults) == sorted(
        fault.name
        for fault in FAULTS
        for kind in {"pairs", "groups"} & set(fault.kinds)
        if not any(case.kind == kind and fault.bites(case) for case in several)
    )


@pytest.mark.parametrize(
    ("left_out", "kind", "condition", "fault"),
    [
        ("groups-masked", "groups", "a token of a response is not supervised", "user-turns-supervised"),
        (
            "groups-of-many",
            "groups",
            "a side of a group holds a response twice, and another",
            "equal-responses-weigh-once",
        ),
        ("groups-long", "groups", "positions go beyond 256", "positions-wrap-at-256"),
        ("examples-long", "examples", "positions go beyond 256", "positions-wrap-at-256"),
        (
            "examples-with-end-tokens",
            "examples",
            "an example comes twice, beside others",
            "equal-examples-counted-once",
        ),
        (
            "conversation-turn-by-turn",
            "examples",
            "two responses share a token that one of them counts",
            "mask-of-first-holder",
        ),
    ],
)
def test_without_a_case_what_it_alone_shows_of_its_kind_is_named_though_pairs_show_it(
    spots: Callable[..., list[BlindSpotRecord]], left_out: str, kind: str, condition: str, fault: str
) -> None:
    found = {spot.what: spot.faults for spot in spots([case.name for case in CASES if case.name != left_out])}
    assert fault in found[f"faults on {kind} that bite only where {condition}"]


@pytest.mark.parametrize("subject", ["dense-sdpa/block-diagonal", "dense-sdpa/bins"])
def test_faults_of_kinds_that_a_subject_does_not_take_are_no_blind_spot_of_it(
    spots: Callable[..., list[BlindSpotRecord]], subject: str
) -> None:
    kinds = set(kinds_taken(select_subject(subject)))
    named = {fault for spot in spots([case.name for case in CASES], [subject]) for fault in spot.faults}
    assert named <= {fault.name for fault in FAULTS if kinds & set(fault.kinds)}
    assert all(len(spot.why) < 300 for spot in spots([case.name for case in CASES], ["fault:none", subject]))


def test_a_kind_of_which_there_is_no_case_is_one_blind_spot(spots: Callable[..., list[BlindSpotRecord]]) -> None:
    found = {spot.what: spot for spot in spots([case.name for case in CASES if case.kind == "pairs"])}
    for kind, words in {"groups": "groups of more than two responses", "examples": "supervised examples"}.items():
        spot = found.pop(f"faults of {words}")
        assert spot.why == "no case of that kind was judged"
        assert set(spot.faults) == {fault.name for fault in FAULTS if kind in fault.kinds}
    assert found == {}


def test_what_no_subject_was_judged_on_shows_nothing(policy: Policy) -> None:
    request = GateRequest(
        model=ModelRequest(name="tiny"), dtypes=("float64", "float32"), subjects=(select_subject("dense-sdpa"),),
        cases=CASES[:1], objective=Preference(), policy=policy,
    )  # fmt: skip
    in_one_dtype = [passed("dense-sdpa", CASES[0], "float64")]
    (spot,) = blind_spots(request, in_one_dtype, CONFIG)
    assert (spot.what, len(spot.faults)) == ("any fault of the subjects, of which none was judged", len(FAULTS))
    # Without what rounding hid the record would not hold every fault that was planted.
    hidden = ("float32", "logits-in-bfloat16-forward")
    _, spot = blind_spots(request, in_one_dtype, CONFIG, within_rounding=[hidden])
    assert (spot.why, spot.faults) == (f"planted and within budget: {hidden[1]}", [hidden[1]])


@pytest.mark.parametrize(
    ("objective", "what"),
    [
        (Preference(beta=0.1, label_smoothing=0.0), {"faults of label smoothing"}),
        (Preference(beta=1.0, label_smoothing=0.1), {"faults of beta"}),
        (Preference(beta=0.1, label_smoothing=0.1), set()),
    ],
)
def test_options_that_the_run_does_not_use_are_blind_spots(
    spots: Callable[..., list[BlindSpotRecord]], objective: Preference, what: set[str]
) -> None:
    assert {spot.what for spot in spots([case.name for case in CASES], objective=objective)} == what


def test_shapes_of_the_model_are_blind_spots(spots: Callable[..., list[BlindSpotRecord]]) -> None:
    all_cases = [case.name for case in CASES]
    narrow = SimpleNamespace(num_attention_heads=4, head_dim=16, hidden_size=64, num_hidden_layers=1)
    model = ModelRequest(name="tiny", lora=LoraSpec(rank=16, alpha=16))
    assert {spot.what for spot in spots(all_cases, config=narrow, model=model)} == {
        "faults of the attention scale", "faults of some layers and not others", "faults of the adapters' scale",
    }  # fmt: skip


def fails(outcome: GateOutcome) -> set[str]:
    return {result.subject for result in outcome.results if result.verdict is not Verdict.PASS} - {
        result.subject for result in outcome.results if result.verdict is Verdict.PASS
    }


@pytest.mark.parametrize(
    ("objective", "names"),
    [
        (Preference(beta=0.3, label_smoothing=0.0), ["label-smoothing-ignored"]),
        (Preference(beta=1.0, label_smoothing=0.1), ["divided-by-beta", "beta-missing", "rewards-scaled-twice"]),
    ],
)
def test_what_an_option_hides_passes_with_it_and_fails_without(
    gate: Callable[..., GateOutcome], short_case: Case, objective: Preference, names: list[str]
) -> None:
    subjects = [FaultySubject(mutation=mutation_named(name)) for name in names]
    assert not fails(gate(subjects, [short_case], objective=objective, variations=("eager",)))
    seen = replace(objective, beta=0.3, label_smoothing=0.1)
    assert fails(gate(subjects, [short_case], objective=seen, variations=("eager",))) == {s.name for s in subjects}


def test_faults_of_the_gradients_leave_every_forward_quantity_exact(gate: Callable[..., GateOutcome]) -> None:
    by_case: dict[str, list[FaultySubject]] = {}
    for fault in ONLY_IN_GRADIENTS:
        (case,) = biting_cases(fault, CASES, at_most=1)
        by_case.setdefault(case.name, []).append(
            FaultySubject(mutation=fault, cases=frozenset({case.name}), gradients=False)
        )
    cases = [case for case in CASES if case.name in by_case]
    outcome = gate([subject for own in by_case.values() for subject in own], cases, variations=("eager",))
    assert len(ONLY_IN_GRADIENTS) > 10
    assert not fails(outcome)


def test_autocast_hides_what_bfloat16_hides_and_no_more(spots: Callable[..., list[BlindSpotRecord]]) -> None:
    found = spots(["balanced"], dtypes=("bfloat16", "autocast-bfloat16"))
    plain, autocast = (spot for spot in found if spot.what.startswith("faults smaller than the rounding of"))
    assert plain.faults == autocast.faults
    assert "responses-swapped" not in autocast.faults

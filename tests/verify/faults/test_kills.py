"""A fault of every stage through the gate, on a model of one layer: caught by what must catch it; controls are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from verify.cases import Case
from verify.checks.check import EXACT_CHECK_NAMES, Finding
from verify.default_cases.tiny import tiny_cases
from verify.faults.catalogue import mutation_named
from verify.faults.controls import EQUIVALENT_MUTANTS
from verify.faults.fault import Fault
from verify.faults.kill_matrix import Kill, Outcome, kill_of, verdict_of
from verify.faults.rows import Rows
from verify.faults.stages import STAGES, Positions
from verify.gate import GateOutcome
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.packed_proof import summarise
from verify.subjects.faulty import FaultySubject
from verify.subjects.selection import select_subject
from verify.verdict import Verdict

SMALL = ("two-groups", "special-ids-inside")
LARGER = ("same-prompt-twice", "very-unequal-responses", "long-prompt")
CASES = tuple(c for c in tiny_cases(257, 0) if c.name in (*SMALL, *LARGER))
EVERYTHING = ("log-probs", "ref log-probs", "rewards, margins, loss", "gradients")
OBJECTIVE = ("rewards, margins, loss", "gradients")

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "gap-before-rejected": EVERYTHING,
    "positions-run-on": EVERYTHING,
    "last-group-of-a-prompt": EVERYTHING,
    "causal-mask-only": EVERYTHING,
    "causal-for-groups-alike": EVERYTHING,
    "trees-not-isolated": EVERYTHING,
    "recurrent-state-leaks": EVERYTHING,
    "nan-in-padding-embedding": EVERYTHING,
    "adapter-scaling-ignored": ("log-probs", *OBJECTIVE),
    "prompt-cache-detached": ("gradients",),
    "neighbour-predicts": EVERYTHING,
    "end-token-not-counted": OBJECTIVE,
    "token-zero-not-counted": OBJECTIVE,
    "prompt-counted": ("rewards, margins, loss",),
    "log-softmax-in-bfloat16": EVERYTHING,
    "logits-in-bfloat16-backward": ("gradients",),
    "mean-instead-of-sum": OBJECTIVE,
    "one-adapter-stays-on": ("ref log-probs", *OBJECTIVE),
    "label-smoothing-ignored": OBJECTIVE,
    "coefficients-permuted": ("gradients",),
    "sum-over-groups": OBJECTIVE,
    "gradients-in-bfloat16": ("gradients",),
    "reference-in-unpacked-rows": ("packed path ran",),
}


@pytest.fixture(scope="module")
def kills(gate: Callable[..., GateOutcome]) -> Mapping[str, Kill]:
    from verify.fault_grounds import OBJECTIVE as SETTINGS

    planted = (*(mutation_named(name) for name in CAUGHT_BY), *EQUIVALENT_MUTANTS)
    subjects = {}
    for mutation in planted:
        names = frozenset(case.name for case in CASES if mutation.bites(case))
        names = names & {*SMALL} or names
        assert names, mutation.name
        subjects[mutation.name] = FaultySubject(mutation=mutation, cases=names)
    outcome = gate(list(subjects.values()), CASES, objective=SETTINGS)
    summaries = summarise(outcome.results, list(subjects.values()), ["float32"])
    return {m.name: kill_of(m, s) for m, s in zip(planted, summaries, strict=True)}


def test_the_sample_has_a_fault_of_every_stage() -> None:
    elsewhere = {"readout", "scores", "routers", "window"}  # test_reward_model, test_router_gate, test_windows
    assert {mutation_named(name).stage for name in CAUGHT_BY} == set(STAGES) - elsewhere


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_fault_is_killed_by_the_checks_that_can_see_it_and_no_other(kills: Mapping[str, Kill], name: str) -> None:
    kill = kills[name]
    assert kill.outcome is Outcome.KILLED, kill.reasons
    assert kill.caught_by == CAUGHT_BY[name]
    assert kill.sole_check == (CAUGHT_BY[name][0] if len(CAUGHT_BY[name]) == 1 else "")


@pytest.mark.parametrize("name", [name for name in CAUGHT_BY if name != "reference-in-unpacked-rows"])
def test_a_fault_is_wrong_by_far(kills: Mapping[str, Kill], name: str) -> None:
    assert kills[name].weakest_margin > 10


@pytest.mark.parametrize("name", [mutant.name for mutant in EQUIVALENT_MUTANTS])
def test_an_equivalent_mutant_is_left_alone(kills: Mapping[str, Kill], name: str) -> None:
    assert kills[name].outcome is Outcome.QUIET, kills[name].reasons


def test_without_a_fault_the_stages_pass_as_the_packed_subject_does(gate: Callable[..., GateOutcome]) -> None:
    """What is caught elsewhere is the fault, not the taking apart."""
    outcome = gate([FaultySubject(), select_subject("dense-sdpa")], [c for c in CASES if c.name in SMALL])
    assert {result.verdict for result in outcome.results} == {Verdict.PASS}
    for staged, packed in zip(outcome.results[0::2], outcome.results[1::2], strict=True):
        assert [j.num_compared for j in staged.judgements] == [j.num_compared for j in packed.judgements]
        assert staged.phases == packed.phases


@pytest.mark.parametrize(
    ("name", "caught_by"),
    [("first-layer-without-gradient", "structure"), ("only-first-layer-has-gradient", "gradients")],
)
def test_a_layer_without_gradients_is_named(gate: Callable[..., GateOutcome], name: str, caught_by: str) -> None:
    """Takes two layers: of one, none would be left."""
    mutation, case = mutation_named(name), next(case for case in CASES if case.name == "special-ids-inside")
    subject = FaultySubject(mutation=mutation)
    model = ModelRequest(name="tiny", num_layers=2, lora=LoraSpec(strength=0.3))
    outcome = gate([subject], [case], model=model)
    kill = kill_of(mutation, summarise(outcome.results, [subject], ["float32"])[0])
    assert kill.outcome is Outcome.KILLED
    assert kill.sole_check == caught_by
    shown = next(catch.where for catch in kill.catches if catch.killed)
    assert ("layers.0." if caught_by == "structure" else "layers.1.") in shown


# The outcome of a mutation can be the wrong one.


def _honest(honest: Positions, rows: Rows) -> object:
    return honest(rows)


def _raises(honest: Positions, rows: Rows) -> object:
    raise RuntimeError("no such kernel")


def test_what_is_no_fault_survives_what_is_wrong_is_flagged_and_what_raises_is_an_error(
    gate: Callable[..., GateOutcome], short_case: Case
) -> None:
    fault = mutation_named("positions-run-on")
    control = mutation_named("positions-shifted")
    planted = (
        replace(fault, name="survivor", replacement=_honest),
        replace(control, name="alarm", replacement=fault.replacement),
        replace(fault, name="broken", replacement=_raises),
        replace(mutation_named("row-mostly-padding"), name="not-padded", stage="positions", replacement=_honest),
    )
    subjects = [FaultySubject(mutation=mutation) for mutation in planted]
    outcome = gate(subjects, [short_case])
    found = [kill_of(m, s) for m, s in zip(planted, summarise(outcome.results, subjects, ["float32"]), strict=True)]
    assert [kill.outcome for kill in found] == [Outcome.SURVIVED, Outcome.FLAGGED, Outcome.ERROR, Outcome.SURVIVED]
    assert found[0].reasons == ("parity passes on case one-pair",)
    assert "per_token_logps" in found[1].reasons[0]
    assert "RuntimeError: no such kernel" in found[2].reasons[0]
    assert found[3].reasons == ("the proof that the packed path ran sees nothing",)
    assert [verdict_of([kill]) for kill in found] == [Verdict.FAIL, Verdict.FAIL, Verdict.ERROR, Verdict.FAIL]
    assert verdict_of([]) is Verdict.ERROR


@pytest.mark.parametrize(("verdict", "outcome"), [(Verdict.FAIL, Outcome.KILLED), (Verdict.PASS, Outcome.SURVIVED)])
def test_a_fault_survives_an_exact_check_that_is_named_for_it_and_sees_nothing(
    gate: Callable[..., GateOutcome], short_case: Case, verdict: Verdict, outcome: Outcome
) -> None:
    """However far beyond their budgets its values are."""
    fault = mutation_named("positions-run-on")
    assert isinstance(fault, Fault)
    named = [name for name in EXACT_CHECK_NAMES if name in fault.must_kill]
    assert named == ["row-map", "absolute-positions", "permutation"]
    subject = FaultySubject(mutation=fault)
    (summary,) = summarise(gate([subject], [short_case]).results, [subject], ["float32"])
    seen = [Finding(check=n, subject=subject.name, dtype="float32", case="distinct-tokens", verdict=Verdict.FAIL)
            for n in named[1:]]  # fmt: skip
    kill = kill_of(fault, summary, [*seen, replace(seen[0], check="row-map", verdict=verdict)])
    assert kill.outcome is outcome
    assert kill.reasons == (() if outcome is Outcome.KILLED else ("row-map sees nothing",))
    assert verdict_of([kill]) is outcome.verdict is (Verdict.PASS if outcome is Outcome.KILLED else Verdict.FAIL)


def test_a_mutation_that_was_run_on_no_case_has_no_outcome(gate: Callable[..., GateOutcome], short_case: Case) -> None:
    mutation = mutation_named("sum-over-groups")
    subject = FaultySubject(mutation=mutation, cases=frozenset())
    outcome = gate([subject], [short_case])
    (summary,) = summarise(outcome.results, [subject], ["float32"])
    with pytest.raises(ValueError, match="sum-over-groups was run on no case in float32"):
        kill_of(mutation, summary)

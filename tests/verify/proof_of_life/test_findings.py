"""A run is shown what it would have caught; where it catches nothing, it proves nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from reports.record import Record
from verify.cases import Case
from verify.default_cases.tiny import tiny_cases
from verify.environment import read_environment
from verify.gate import GateOutcome, GateRequest, run_gate
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.proof_of_life.findings import prove, without_planted
from verify.proof_of_life.planting import Plantings, choose_plantings
from verify.recording import RunFacts, record_run
from verify.subjects.selection import select_subject
from verify.tolerance import Policy

NAMES = ("one-token-prompt", "one-token-chosen", "two-groups")
FACTS = RunFacts(
    command=["packparity", "check"], environment=read_environment("cpu"), import_s=1.0, total_s=2.0,
    seeds={}, data=None, notes=[],
)  # fmt: skip


def lax(policy: Policy, factor: float) -> Policy:
    """A policy that lets anything pass: no file may say so."""
    changes = {"factor": factor}
    return policy.model_copy(
        update={
            "oracle": policy.oracle.model_copy(update=changes),
            "differential": policy.differential.model_copy(update=changes),
        }
    )


@pytest.fixture(scope="module")
def run_with_faults(policy: Policy) -> Callable[..., tuple[GateRequest, GateOutcome, Plantings]]:
    def run(
        names: Sequence[str] = NAMES, change: Callable[[Plantings], Plantings] = lambda p: p, **changes: Any
    ) -> tuple[GateRequest, GateOutcome, Plantings]:
        settings: dict[str, Any] = {
            "model": ModelRequest(name="tiny", lora=LoraSpec(strength=0.3)),
            "dtypes": ("float32",),
            "subjects": (select_subject("dense-sdpa"),),
            "cases": tuple(case for case in tiny_cases(257, 0) if case.name in names),
            "objective": Preference(beta=0.1),
            "policy": policy,
            "variations": ("eager", "padded-left"),
            **changes,
        }
        request = GateRequest(**settings)
        plantings = change(choose_plantings(request, vocab_size=257, num_layers=2, is_tiny=True))
        planted = replace(request, subjects=(*request.subjects, *plantings.subjects))
        return request, run_gate(planted, lambda done, total, text: None), plantings

    return run


@pytest.fixture(scope="module")
def honest_run(run_with_faults: Callable[..., Any]) -> tuple[GateRequest, GateOutcome, Plantings]:
    found: tuple[GateRequest, GateOutcome, Plantings] = run_with_faults()
    return found


def recorded(request: GateRequest, outcome: GateOutcome, plantings: Plantings, *, is_tiny: bool = True) -> Record:
    proof = prove(request, outcome, plantings, is_tiny=is_tiny)
    return record_run(request, without_planted(outcome, plantings), FACTS, proof=proof)


def test_every_planted_fault_is_caught_and_the_pass_cites_it(
    honest_run: tuple[GateRequest, GateOutcome, Plantings],
) -> None:
    record = recorded(*honest_run)
    assert (record.verdict, record.reasons) == ("PASS", [])
    assert len(record.planted) == 14
    assert all(planted.killed and planted.margin > 10 for planted in record.planted)
    assert record.notes[-1].startswith("faults planted in this run: 14, 6 of them with a backward pass; they add ")


def test_every_family_of_checks_is_the_only_one_that_catches_some_fault_but_log_probs(
    honest_run: tuple[GateRequest, GateOutcome, Plantings],
) -> None:
    """Rewards follow from log-probs, so that no fault of theirs is caught by them alone."""
    caught = [set(planted.caught_by) for planted in recorded(*honest_run).planted]
    for family in ("rewards, margins, loss", "gradients", "structure", "packed path ran"):
        assert {family} in caught
    assert {"ref log-probs", "rewards, margins, loss"} in caught
    assert {"log-probs", "ref log-probs", "rewards, margins, loss"} in caught


def test_a_fault_has_a_margin_in_each_family_and_none_where_the_check_has_no_budget(
    honest_run: tuple[GateRequest, GateOutcome, Plantings],
) -> None:
    planted = {planted.fault: planted for planted in recorded(*honest_run).planted}
    assert planted["falls-back-to-unpacked"].margins["packed path ran"] == math.inf
    assert planted["falls-back-to-unpacked"].margins["log-probs"] < 1
    assert planted["prompt-cache-detached"].margins["log-probs"] < 1 < planted["prompt-cache-detached"].margin
    assert "gradients" not in planted["neighbour-predicts"].margins
    for one in planted.values():
        assert {family for family, margin in one.margins.items() if margin > 1} == set(one.caught_by)


def test_planted_faults_are_no_part_of_the_results(honest_run: tuple[GateRequest, GateOutcome, Plantings]) -> None:
    request, outcome, plantings = honest_run
    record = recorded(request, outcome, plantings)
    assert {result.subject for result in record.results} == {"dense-sdpa"}
    assert [subject.name for subject in record.subjects] == ["dense-sdpa"]
    assert len(record.results) == len(NAMES)
    alone = run_gate(request, lambda done, total, text: None)
    assert record.num_compared == sum(result.num_compared for result in alone.results)
    ratios = [[j.measured for j in result.judgements] for result in without_planted(outcome, plantings).results]
    assert ratios == [[j.measured for j in result.judgements] for result in alone.results]


def test_a_run_that_lets_anything_pass_is_inconclusive(run_with_faults: Callable[..., Any], policy: Policy) -> None:
    record = recorded(*run_with_faults(("one-token-prompt",), policy=lax(policy, 1e9)))
    assert {summary.verdict for summary in record.summaries} == {"PASS"}
    assert record.verdict == "INCONCLUSIVE"
    survivors = {planted.fault for planted in record.planted if not planted.killed}
    # What has no budget is still seen.
    assert {p.fault for p in record.planted} - survivors == {"falls-back-to-unpacked", "first-layer-without-gradient"}
    (reason,) = record.reasons
    assert reason.startswith(f"float32: {len(survivors)} of {len(record.planted)} planted faults would not have been")
    assert "branches-not-isolated: parity passes on case one-token-prompt" in reason


def test_a_failure_stays_a_failure_beside_survivors(run_with_faults: Callable[..., Any], policy: Policy) -> None:
    subject = select_subject("fault:first-layer-without-gradient")
    record = recorded(*run_with_faults(("one-token-prompt",), policy=lax(policy, 1e9), subjects=(subject,)))
    assert record.verdict == "FAIL"
    assert any("would not have been noticed" in reason for reason in record.reasons)


def test_what_rounding_hides_is_a_blind_spot_in_bfloat16_and_no_verdict(run_with_faults: Callable[..., Any]) -> None:
    record = recorded(*run_with_faults(("one-token-prompt",), dtypes=("bfloat16",)))
    assert record.verdict == "PASS"
    assert all(planted.killed for planted in record.planted)
    (spot,) = (spot for spot in record.blind_spots if "rounding of bfloat16" in spot.what)
    assert spot.why == "planted and within budget: logits-in-bfloat16-forward, one-gradient-off-by-a-thousandth"
    assert {"logits-in-bfloat16-forward", "hidden-states-in-bfloat16"} <= set(spot.faults)
    assert not {planted.fault for planted in record.planted} & set(spot.why.split(": ")[1].split(", "))


def test_a_fine_fault_that_survives_in_float32_counts_on_the_tiny_model_only(
    run_with_faults: Callable[..., Any], policy: Policy
) -> None:
    """A factor between the margins of fine and coarse faults."""
    run = run_with_faults(("one-token-prompt",), policy=lax(policy, 2000))
    assert recorded(*run).verdict == "INCONCLUSIVE"
    elsewhere = recorded(*run, is_tiny=False)
    assert elsewhere.verdict == "PASS"
    (spot,) = (spot for spot in elsewhere.blind_spots if "rounding of float32" in spot.what)
    assert "one-gradient-off-by-a-thousandth" in spot.faults
    assert set(spot.faults) <= {"logits-in-bfloat16-forward", "one-gradient-off-by-a-thousandth"}


def raises(honest: Callable[..., Any], *args: object) -> None:
    raise RuntimeError("out of memory")


def first_only(plantings: Plantings, **changes: Any) -> Plantings:
    (first, *_) = plantings.chosen
    mutation = replace(first.probe.mutation, **changes)
    subject = replace(first.subject, mutation=mutation)
    return replace(plantings, chosen=(replace(first, subject=subject),))


def test_a_fault_that_cannot_be_run_proves_nothing(run_with_faults: Callable[..., Any]) -> None:
    run = run_with_faults(("one-token-prompt",), lambda plantings: first_only(plantings, replacement=raises))
    record = recorded(*run)
    assert record.verdict == "INCONCLUSIVE"
    (reason,) = record.reasons
    assert reason.startswith("float32: 1 of 1 planted faults could not be run: branches-not-isolated; ")
    assert "out of memory" in reason


def test_a_fault_on_a_case_on_which_budgets_are_in_doubt_is_not_called_caught(
    run_with_faults: Callable[..., Any], policy: Policy
) -> None:
    """The unpacked model and the oracle differ by more than is plausible: nobody's verdict can rest on that case."""
    nothing_plausible = policy.plausible.model_copy(
        update={"float32": policy.plausible.float32.model_copy(update={"per_token_logps_rms": 1e-12})}
    )
    doubtful = policy.model_copy(update={"plausible": nothing_plausible})
    record = recorded(*run_with_faults(("one-token-prompt",), first_only, policy=doubtful))
    (planted,) = record.planted
    assert not planted.killed
    assert record.verdict == "INCONCLUSIVE"
    assert any(
        "1 of 1 planted faults could not be judged: branches-not-isolated" in reason for reason in record.reasons
    )


def test_planted_faults_leave_nothing_behind(honest_run: tuple[GateRequest, GateOutcome, Plantings]) -> None:
    _, outcome, _ = honest_run
    model = outcome.model.model
    assert outcome.notes == ()
    assert all(not module._forward_hooks for module in model.modules())
    assert torch.is_grad_enabled()
    assert isinstance(tiny_cases(257, 0)[0], Case)

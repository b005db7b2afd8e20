"""What the run's own checks made of the faults that were planted in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from reports.record_faults import BlindSpotRecord, PlantedRecord
from reports.record_names import DtypeName
from verify.faults.kill_matrix import FAMILIES, Kill, Outcome, kill_of
from verify.gate import GateOutcome, GateRequest
from verify.packed_proof import summarise
from verify.proof_of_life.blind_spots import blind_spots
from verify.proof_of_life.left_out import left_out
from verify.proof_of_life.planting import Planting, Plantings
from verify.proof_of_life.router_coefficient import router_coefficient
from verify.verdict import Verdict

_NAMED = 4
"""Names of faults that a reason lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the run was shown to catch, and what not.

    Args:
        planted: Every planted fault but those that only rounding hides.
        blind_spots: What the run would not have seen.
        reasons: Why the run proves nothing: faults that it had to catch and did not.
        notes: What was planted, at what cost.
    """

    planted: tuple[PlantedRecord, ...] = ()
    blind_spots: tuple[BlindSpotRecord, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What it adds to the verdict of the run: a run that was shown to be blind is no PASS."""
        return (Verdict.INCONCLUSIVE,) if self.reasons else ()


NOTHING_PLANTED = Proof()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One planted fault in one dtype."""

    planting: Planting
    kill: Kill
    hides_in_rounding: bool
    """It survived where rounding may hide it."""


def prove(request: GateRequest, outcome: GateOutcome, plantings: Plantings, *, is_tiny: bool) -> Proof:
    """What a run would have caught, and what not.

    Args:
        request: The run without planted faults.
        outcome: The outcome with the results of planted faults.
        plantings: What was planted.
        is_tiny: The model is the tiny one, whose rounding hides nothing outside of bfloat16.

    Returns:
        The proof.
    """
    findings = findings_of(outcome, plantings, request.dtypes, is_tiny=is_tiny)
    hidden = [(f.kill.dtype, f.kill.mutation.name) for f in findings if f.hides_in_rounding]
    judged = without_planted(outcome, plantings)
    ran = {found.check for found in outcome.findings if found.verdict in (Verdict.PASS, Verdict.FAIL)}
    return Proof(
        planted=planted_records(findings),
        blind_spots=(
            *router_coefficient([f.kill for f in findings], request.objective.router_aux_loss_coef),
            *blind_spots(request, judged.results, outcome.model.model.config.get_text_config(), within_rounding=hidden),
            *left_out(request, ran),
        ),
        reasons=reasons_of(findings),
        notes=notes_of(plantings),
    )


def without_planted(outcome: GateOutcome, plantings: Plantings) -> GateOutcome:
    """The outcome of the subjects under judgement alone."""
    planted = {subject.name for subject in plantings.subjects}
    return replace(outcome, results=tuple(r for r in outcome.results if r.subject not in planted))


def findings_of(
    outcome: GateOutcome, plantings: Plantings, dtypes: Sequence[str], *, is_tiny: bool
) -> tuple[Finding, ...]:
    """What became of each planted fault.

    Args:
        outcome: The whole outcome, results of planted faults included.
        plantings: What was planted.
        dtypes: The dtypes of the run.
        is_tiny: Rounding is that of the tiny model, which hides nothing outside of bfloat16.

    Returns:
        One finding for each dtype and planting.
    """
    by_subject = {planting.subject.name: planting for planting in plantings.chosen}
    findings = []
    for summary in summarise(outcome.results, plantings.subjects, dtypes):
        planting = by_subject[summary.subject]
        kill = kill_of(planting.probe.mutation, summary)
        survived_there = kill.outcome is Outcome.SURVIVED and planting.probe.may_hide_in(summary.dtype, is_tiny=is_tiny)
        findings.append(
            Finding(
                planting=planting,
                kill=kill,
                hides_in_rounding=survived_there or kill.outcome is Outcome.HIDDEN,
            )
        )
    return tuple(findings)


def planted_records(findings: Sequence[Finding]) -> tuple[PlantedRecord, ...]:
    """What the record keeps of them; a fault that only rounding hides is a blind spot instead."""
    return tuple(_planted_record(finding.kill) for finding in findings if not finding.hides_in_rounding)


def _planted_record(kill: Kill) -> PlantedRecord:
    killed = kill.outcome is Outcome.KILLED
    margins: dict[str, float] = {}
    for catch in kill.catches:
        if catch.kind is not None or catch.killed:
            family, margin = FAMILIES[catch.check], catch.margin if catch.kind is not None else math.inf
            margins[family] = max(margins.get(family, 0.0), margin)
    return PlantedRecord(
        fault=kill.mutation.name,
        stage=kill.mutation.stage,
        what=kill.mutation.what,
        dtype=cast(DtypeName, kill.dtype),
        cases=list(kill.cases),
        killed=killed,
        margin=max(margins.values(), default=0.0),
        caught_by=list(kill.caught_by) if killed else [],
        margins=margins,
    )


def reasons_of(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Why the run proves nothing: what it had to catch and did not, in one line for each dtype and outcome.

    Args:
        findings: All findings.

    Returns:
        Reasons; none where every fault was caught that had to be.
    """
    words = {
        Outcome.SURVIVED: "would not have been noticed",
        Outcome.INCONCLUSIVE: "could not be judged",
        Outcome.ERROR: "could not be run",
    }
    missed: dict[tuple[str, Outcome], list[Kill]] = {}
    for finding in findings:
        if finding.kill.outcome in words and not finding.hides_in_rounding:
            missed.setdefault((finding.kill.dtype, finding.kill.outcome), []).append(finding.kill)
    return tuple(
        f"{dtype}: {len(kills)} of {sum(f.kill.dtype == dtype for f in findings)} planted faults {words[outcome]}: "
        f"{_named(kills)}; {kills[0].mutation.name}: {'; '.join(kills[0].reasons)}"
        for (dtype, outcome), kills in missed.items()
    )


def _named(kills: Sequence[Kill]) -> str:
    names = [kill.mutation.name for kill in kills]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def notes_of(plantings: Plantings) -> tuple[str, ...]:
    """What was planted and what it cost; why nothing or less was.

    Args:
        plantings: What was planted.

    Returns:
        One or two notes.
    """
    notes = []
    if plantings.chosen:
        backward = sum(planting.subject.gradients for planting in plantings.chosen)
        notes.append(
            f"faults planted in this run: {len(plantings.chosen)}, {backward} of them with a backward pass; they add "
            f"{plantings.cost:.1%} to its passes, counted in token slots"
        )
    for why in dict.fromkeys(plantings.left_out.values()):
        names = [name for name, reason in plantings.left_out.items() if reason == why]
        notes.append(f"faults not planted: {', '.join(names)}: {why}")
    return tuple(notes)

"""From an outcome of sharded parity to the record that is kept and rendered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal, cast

from reports.record_setting import DataRecord, Environment
from reports.sharded_record import (
    CheckRecord,
    HarmlessRecord,
    HeldRecord,
    ParityRecord,
    PlantedFaultRecord,
    PrecisionName,
    PrecisionRecord,
    ScenarioRecord,
    ShardedRecord,
)
from reports.values import Settings
from verify.recording import case_record, judgement_record, model_record, subject_record
from verify.sharded.finding import Finding
from verify.sharded.parity import ParityResult
from verify.sharded.run import ShardedOutcome, ShardedRequest
from verify.sharded.scenarios import PRECISIONS
from verify.tool_version import tool_version
from verify.verdict import Verdict, fold

_REASONS_KEPT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedFacts:
    """What is known about a run beside its outcome.

    Args:
        command: The command line.
        environment: Of rank 0.
        world_size: Number of ranks.
        backend: Of torch.distributed.
        started_by: Who started the ranks.
        total_s: Wall time.
        data: Of real pairs; None where there were none.
        notes: What a reader must know.
    """

    command: Sequence[str]
    environment: Environment
    world_size: int
    backend: str
    started_by: Literal["local ranks", "environment"]
    total_s: float
    data: DataRecord | None
    notes: Sequence[str]


def verdict_of(outcome: ShardedOutcome) -> tuple[Verdict, list[str]]:
    """The verdict of a run, and its reasons.

    A planted fault that nothing caught, or a harmless change that was taken for one, makes a PASS INCONCLUSIVE.

    Args:
        outcome: What was measured.

    Returns:
        The verdict, and why it is no PASS.
    """
    survived = [planted for planted in outcome.planted if not planted.caught_by]
    flagged = [change for change in outcome.harmless if change.caught_by]
    doubts: list[str] = []
    if not outcome.findings:
        doubts.append("no subject ran in the scenario that is probed: no check was run and no fault planted")
    doubts += [f"{each.precision}: planted {each.name} was not caught by {_names(each.findings)}" for each in survived]
    doubts += [
        f"{each.precision}: the harmless change {each.name} was flagged by {', '.join(each.caught_by)}"
        for each in flagged
    ]
    verdict = fold(
        [
            *(result.verdict for result in outcome.parity),
            *(finding.verdict for finding in outcome.findings),
            *([Verdict.INCONCLUSIVE] if doubts else []),
        ]
    )
    if verdict is Verdict.NOT_APPLICABLE:
        verdict = Verdict.INCONCLUSIVE
    reasons = [
        f"{r.subject} in {r.scenario}, {r.precision}, is {r.verdict.value}: {r.reasons[0]}"
        for r in outcome.parity
        if r.verdict not in (Verdict.PASS, Verdict.NOT_APPLICABLE)
    ]
    reasons += [
        f"{finding.check}, {finding.precision}: {finding.worst}"
        for finding in outcome.findings
        if finding.verdict not in (Verdict.PASS, Verdict.NOT_APPLICABLE)
    ]
    return verdict, [*reasons, *doubts][:_REASONS_KEPT]


def _names(findings: Sequence[Finding]) -> str:
    return ", ".join(finding.check for finding in findings)


def record_sharded(request: ShardedRequest, outcome: ShardedOutcome, facts: ShardedFacts) -> ShardedRecord:
    """Assemble the record.

    Args:
        request: What was asked for.
        outcome: What was measured.
        facts: Command, ranks, times.

    Returns:
        The record.
    """
    verdict, reasons = verdict_of(outcome)
    return ShardedRecord(
        schema_version=1,
        tool_version=tool_version(),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(facts.command),
        verdict=verdict.value,
        reasons=reasons,
        world_size=facts.world_size,
        backend=facts.backend,
        started_by=facts.started_by,
        environment=facts.environment,
        model=model_record(request.model, outcome.model),
        precisions=[
            PrecisionRecord(name=cast(PrecisionName, name), **asdict(PRECISIONS[name])) for name in request.precisions
        ],
        objective=_objective(request),
        cases=[case_record(case) for case in request.cases],
        scenarios=[
            ScenarioRecord(
                name=s.name,
                case=s.case.name,
                micro_size=s.micro_size,
                reference=None if request.is_reward_model else s.reference,
            )
            for s in request.scenarios
        ],
        subjects=[subject_record(subject) for subject in request.subjects],
        parity=[_parity_record(result) for result in outcome.parity],
        checks=[_check_record(finding) for finding in outcome.findings],
        planted=[
            PlantedFaultRecord(
                fault=each.name,
                what=each.what,
                precision=cast(PrecisionName, each.precision),
                caught_by=list(each.caught_by),
                checks=[_check_record(finding) for finding in each.findings],
            )
            for each in outcome.planted
        ],
        harmless=[
            HarmlessRecord(
                change=each.name,
                what=each.what,
                precision=cast(PrecisionName, each.precision),
                flagged_by=list(each.caught_by),
                checks=[_check_record(finding) for finding in each.findings],
            )
            for each in outcome.harmless
        ],
        policy=request.policy.model_dump(),
        data=facts.data,
        seeds={"weights": request.model.seed, "adapters": request.model.seed + 1, "passes": request.seed},
        notes=list(facts.notes),
        total_s=facts.total_s,
    )


def _objective(request: ShardedRequest) -> Settings:
    """The objective of the run by its settings; the frozen policy is that of the models."""
    settings: Settings = dict(request.objective.settings)
    return settings if request.is_reward_model else {**settings, "reference": request.model.reference}


def _parity_record(result: ParityResult) -> ParityRecord:
    return ParityRecord(
        scenario=result.scenario,
        subject=result.subject,
        precision=cast(PrecisionName, result.precision),
        verdict=result.verdict.value,
        reasons=list(result.reasons),
        micro_size=result.micro_size,
        groups_of_ranks=list(result.groups_of_ranks),
        dummies_of_ranks=list(result.dummies_of_ranks),
        num_compared=result.num_compared,
        worst_ratio=max((j.ratio for _, j in result.judgements if j.measured is not None), default=None),
        held=[
            HeldRecord(against=against, judgement=judgement_record(judgement))
            for against, judgement in result.judgements
        ],
    )


def _check_record(finding: Finding) -> CheckRecord:
    return CheckRecord(
        check=finding.check,
        precision=cast(PrecisionName, finding.precision),
        subject=finding.subject,
        verdict=finding.verdict.value,
        num_compared=finding.num_compared,
        ratio=finding.ratio,
        worst=finding.worst,
    )

"""From an outcome of the gate to the record that is kept and rendered."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import torch
from torch import nn

from reports.exact import exact_reason
from reports.record import Record
from reports.record_faults import DiagnosisRecord
from reports.record_names import DtypeName
from reports.record_results import (
    DecisionsRecord,
    ExactCheckRecord,
    JudgementRecord,
    PlaceRecord,
    ResultRecord,
    SlotsRecord,
    SubjectSummary,
)
from reports.record_setting import (
    CaseRecord,
    DataRecord,
    Environment,
    GroupRecord,
    ModelRecord,
    SubjectRecord,
    TimingRecord,
)
from verify.cases import Case
from verify.checks.check import Finding
from verify.comparison import Quantity
from verify.environment import peak_host_bytes
from verify.gate import GateOutcome, GateRequest, Result
from verify.judgement import Judgement
from verify.models.request import ModelRequest, ModelUnderTest
from verify.packed_proof import Summary, first_pass, summarise
from verify.proof_of_life.findings import NOTHING_PLANTED, Proof
from verify.subject import Subject, kinds_taken, layout_of, objectives_taken, owns_loss
from verify.subjects.oracle import unknown_to_oracle
from verify.tool_version import tool_version
from verify.verdict import Verdict, fold

_UNITS: Mapping[Quantity, Literal["relative", "share"]] = {
    "gradients": "relative",
    "router_probs": "share",
    "router_shares": "share",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known about a run beside the gate's own outcome.

    Args:
        command: The command line.
        environment: Versions and hardware, with the number of threads of the passes.
        import_s: Wall time until the imports were done.
        total_s: Wall time of the whole run.
        seeds: Every seed by what it drives.
        data: Where real pairs came from, or None.
        notes: What a reader must know.
        every_subject_must_run: The subjects were named one by one: one that no case was judged on makes the run
            INCONCLUSIVE.
        num_processes: Processes that the passes were shared among.
    """

    command: Sequence[str]
    environment: Environment
    import_s: float
    total_s: float
    seeds: dict[str, int]
    data: DataRecord | None
    notes: Sequence[str]
    every_subject_must_run: bool = False
    num_processes: int = 1


def record_run(
    request: GateRequest,
    outcome: GateOutcome,
    facts: RunFacts,
    *,
    proof: Proof = NOTHING_PLANTED,
    diagnoses: Sequence[DiagnosisRecord] = (),
) -> Record:
    """Assemble the record.

    Args:
        request: What was asked for.
        outcome: What was measured on the subjects that were asked for.
        facts: Command, times, seeds, data.
        proof: What became of the faults that were planted beside them.
        diagnoses: What is probably wrong with those that failed.

    Returns:
        The record; its verdict is the fold of the subjects' summaries and of the proof.
    """
    findings = [f for f in outcome.findings if f.subject in {subject.name for subject in request.subjects}]
    summaries = [
        _with_findings(summary, findings) for summary in summarise(outcome.results, request.subjects, request.dtypes)
    ]
    idle = [s for s in summaries if s.verdict is Verdict.NOT_APPLICABLE] if facts.every_subject_must_run else []
    verdict = fold(
        [*(summary.verdict for summary in summaries), *([Verdict.INCONCLUSIVE] if idle else []), *proof.verdicts]
    )
    return Record(
        **run_fields(request, outcome.model, facts, passes_s=outcome.model_passes_s),
        model_with_images=(
            None
            if request.model_with_images is None or outcome.model_with_images is None
            else model_record(request.model_with_images, outcome.model_with_images)
        ),
        verdict=verdict.value,
        reasons=[
            *_run_reasons(summaries),
            *(f"{s.subject} in {s.dtype} was asked for, but no case was judged" for s in idle),
            *proof.reasons,
        ],
        counts=dict(Counter(result.verdict.value for result in outcome.results)),
        num_compared=sum(result.num_compared for result in outcome.results),
        variations=list(request.variations),
        subjects=[subject_record(subject) for subject in request.subjects],
        summaries=[_summary_record(summary) for summary in summaries],
        results=[_result_record(result) for result in outcome.results],
        exact_checks=[_exact_check_record(finding) for finding in findings],
        planted=list(proof.planted),
        blind_spots=list(proof.blind_spots),
        diagnoses=list(diagnoses),
        data=facts.data,
        notes=[*facts.notes, *outcome.notes, *proof.notes],
    )


class RunFields(TypedDict):
    """What every record of a run says."""

    tool_version: str
    command: list[str]
    created_utc: str
    environment: Environment
    model: ModelRecord
    objective: dict[str, Any]
    seeds: dict[str, int]
    policy: dict[str, Any]
    cases: list[CaseRecord]
    timing: TimingRecord


def run_fields(request: GateRequest, model: ModelUnderTest, facts: RunFacts, *, passes_s: float) -> RunFields:
    """What every record of a run says, be it of a gate or of planted faults.

    Args:
        request: What was asked for.
        model: The model in the last dtype.
        facts: Command, times, seeds.
        passes_s: Wall time of forward and backward passes.

    Returns:
        Fields of the record.
    """
    return RunFields(
        tool_version=tool_version(),
        command=list(facts.command),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=facts.environment,
        model=model_record(request.model, model),
        objective=_objective_record(request),
        seeds=facts.seeds,
        policy=request.policy.model_dump(),
        cases=[case_record(case) for case in request.cases],
        timing=TimingRecord(
            total_s=facts.total_s,
            import_s=facts.import_s,
            model_passes_s=passes_s,
            num_processes=facts.num_processes,
            peak_host_bytes=peak_host_bytes(),
        ),
    )


def _objective_record(request: GateRequest) -> dict[str, Any]:
    settings = request.objective.settings
    return {**settings, "reference": request.model.reference} if "reference" in settings else settings


def _with_findings(summary: Summary, findings: Sequence[Finding]) -> Summary:
    """The summary of a subject with what its exact checks found wrong; they prove nothing where no case was judged."""
    wrong = [
        finding
        for finding in findings
        if (finding.subject, finding.dtype) == (summary.subject, summary.dtype)
        and finding.verdict not in (Verdict.PASS, Verdict.NOT_APPLICABLE)
    ]
    reasons = [exact_reason(f.check, f.case, f.verdict.value, f.reason) for f in wrong]
    verdict = fold([summary.verdict, *(finding.verdict for finding in wrong)])
    return replace(summary, verdict=verdict, reasons=(*summary.reasons, *reasons))


def _exact_check_record(finding: Finding) -> ExactCheckRecord:
    return ExactCheckRecord(
        check=finding.check,
        subject=finding.subject,
        dtype=cast(DtypeName, finding.dtype),
        case=finding.case,
        verdict=finding.verdict.value,
        reason=finding.reason,
        num_compared=finding.num_compared,
        num_differing=finding.num_differing,
    )


def _run_reasons(summaries: Sequence[Summary]) -> list[str]:
    reasons = []
    for summary in summaries:
        if summary.verdict in (Verdict.PASS, Verdict.NOT_APPLICABLE):
            continue
        worst = [r for r in summary.results if r.verdict is summary.verdict]
        where = f"{summary.subject} in {summary.dtype}"
        if worst and worst[0].reasons:
            reasons.append(f"{where}: case {worst[0].case} is {worst[0].verdict.value}: {worst[0].reasons[0]}")
        reasons += [f"{where}: {reason}" for reason in summary.reasons]
    return reasons


def model_record(request: ModelRequest, built: ModelUnderTest) -> ModelRecord:
    """The record of a model and of what is trained of it."""
    model = built.model
    base = [(name, p) for name, p in model.named_parameters() if ".lora_" not in name]
    return ModelRecord(
        name=Path(request.name).resolve().name if request.is_checkpoint or request.config else request.name.lower(),
        weights=built.weights,
        weights_sha256=_weights_sha256(base),
        num_parameters=sum(p.numel() for _, p in base),
        num_layers=int(model.config.get_text_config().num_hidden_layers),
        num_layers_published=built.num_layers_published,
        config=cast(dict[str, Any], json.loads(model.config.to_json_string(use_diff=True))),
        lora=_lora_record(request, model) if request.train == "lora" else {},
        train=request.train,
        expected_by="unpacked-float64" if unknown_to_oracle(model.config) else "oracle",
    )


def _lora_record(request: ModelRequest, model: Any) -> dict[str, Any]:
    adapted = model.peft_config["default"].target_modules
    return {
        **asdict(request.lora),
        "targets": [target for target in request.lora.targets if target in adapted] or sorted(adapted),
        "initialisation": "both factors non-zero",
    }


def _weights_sha256(parameters: Sequence[tuple[str, nn.Parameter]]) -> str:
    """SHA-256 over names and float32 values; the same for every dtype that holds the same values."""
    digest = hashlib.sha256()
    for name, parameter in sorted(parameters, key=lambda item: item[0]):
        digest.update(name.encode())
        digest.update(parameter.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return digest.hexdigest()


def subject_record(subject: Subject) -> SubjectRecord:
    """What a record says of a subject."""
    layout = cast(Literal["packed", "unpacked"], layout_of(subject))
    return SubjectRecord(
        name=subject.name,
        layout=layout,
        takes=list(kinds_taken(subject)),
        objectives=list(objectives_taken(subject)),
        owns_loss=owns_loss(subject),
    )


def case_record(case: Case) -> CaseRecord:
    """What a record says of a case: lengths, no tokens."""
    return CaseRecord(
        name=case.name,
        why=case.why,
        objective=case.objective_name,
        reference=case.reference or "",
        groups=[
            GroupRecord(
                source=group.source,
                prompt=len(group.prompt_ids),
                positives=[len(ids) for ids in group.positives],
                negatives=[len(ids) for ids in group.negatives],
                supervised=list(group.num_supervised) if group.completion_masks else None,
            )
            for group in case.groups
        ],
    )


def _summary_record(summary: Summary) -> SubjectSummary:
    worst: dict[str, float] = {}
    for result in summary.results:
        for judgement in result.judgements:
            if judgement.budget is not None:
                worst[judgement.quantity] = max(worst.get(judgement.quantity, 0.0), judgement.ratio)
    return SubjectSummary(
        subject=summary.subject,
        dtype=cast(DtypeName, summary.dtype),
        verdict=summary.verdict.value,
        reasons=list(summary.reasons),
        cases_by_verdict=dict(Counter(result.verdict.value for result in summary.results)),
        slots=summary.slots,
        pairwise_slots=summary.pairwise_slots,
        worst_ratio=worst,
    )


def _result_record(result: Result) -> ResultRecord:
    slots = None
    if result.phases:
        most = max((phase.count for phase in result.phases), key=lambda count: count.slots - first_pass(count)[0])
        first_slots, first_rows = first_pass(most)
        slots = SlotsRecord(
            slots=most.slots - first_slots,
            rows=most.rows - first_rows,
            forward_calls=most.forward_calls,
            pairwise_slots=result.pairwise_slots,
            images=most.images,
            pairwise_images=result.pairwise_images,
        )
    return ResultRecord(
        case=result.case,
        subject=result.subject,
        dtype=cast(DtypeName, result.dtype),
        verdict=result.verdict.value,
        reasons=list(result.reasons),
        judgements=[judgement_record(judgement) for judgement in result.judgements],
        slots=slots,
        num_compared=result.num_compared,
        decisions=None if result.decisions is None else DecisionsRecord(**asdict(result.decisions)),
    )


def judgement_record(judgement: Judgement) -> JudgementRecord:
    """What a record says of a judgement."""
    budget = judgement.budget
    return JudgementRecord(
        quantity=judgement.quantity,
        budget_kind=judgement.kind,
        statistic=judgement.statistic,
        unit=_UNITS.get(judgement.quantity, "nats"),
        verdict=judgement.verdict.value,
        reason=judgement.reason,
        num_compared=judgement.num_compared,
        measured=judgement.measured,
        budget=budget.value if budget else None,
        witness_error=budget.noise if budget else None,
        witness_from=budget.source if budget else "",
        factor=budget.factor if budget else None,
        floor=budget.floor if budget else None,
        signed_mean=judgement.signed_mean,
        worst=[
            PlaceRecord(
                where=place.where,
                actual=place.actual,
                expected=place.expected,
                measured=place.difference,
                budget=budget.value if budget else 0.0,
            )
            for place in judgement.worst
        ],
    )

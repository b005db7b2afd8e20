"""Diagnosing the subjects that failed in a run of the gate, as records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from reports.record_faults import DiagnosisRecord, NearFaultRecord, StageRecord
from reports.record_names import DtypeName
from verify.cases import Case, over, under
from verify.checks.cases import check_cases
from verify.checks.check import Finding
from verify.default_cases.tiny import tiny_cases
from verify.diagnosis.cases import case_in_words
from verify.diagnosis.diagnose import SAME_VALUES, Diagnosis, Diagnostician
from verify.diagnosis.patterns.over_cases import case_patterns
from verify.diagnosis.stages.exact_checks import describe_finding, exact_check_suspects
from verify.diagnosis.stages.suspect import INFERRED, MEASURED, Suspect, rank
from verify.diagnosis.study import Workbench
from verify.faults.catalogue import ALL_FAULTS
from verify.faults.fault import Fault
from verify.frozen_policy import ReferenceName
from verify.gate import GateRequest, Progress, Result
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, vocabulary_size
from verify.objective import COMPARING_NAMES, REWARD_MODEL, preference_beside, without_router_loss
from verify.precision import DTYPE_NAMES
from verify.subject import Subject, said_by
from verify.subjects.pairwise import VARIATIONS
from verify.verdict import Verdict

AT_MOST = 3
"""Subjects diagnosed in one run."""
_LARGEST_VOCABULARY = 8192
_OTHER_TINY_CASES = ("long-prompt", "length-128", "length-129", "special-ids-inside")
"""What the diagnostic case cannot have: positions beyond 256, branches on a block boundary, ids that recur."""
_EXACT_ALONE = "no value compared is beyond its budget: this is what the exact checks prove, on cases of their own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnoses:
    """What a run says about its failures: one record for each diagnosed subject, and what was left out."""

    records: tuple[DiagnosisRecord, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """A subject, its results and the exact checks that failed in the most exact dtype in which it fails."""

    subject: Subject
    dtype: str
    failing: tuple[Result, ...]
    passing: tuple[Result, ...]
    findings: tuple[Finding, ...]
    other_dtypes: tuple[str, ...]


def diagnose_failures(
    request: GateRequest,
    results: Sequence[Result],
    progress: Progress,
    *,
    large: bool,
    reproductions: Mapping[tuple[str, str], str],
    findings: Sequence[Finding] = (),
    faults: tuple[Fault, ...] = ALL_FAULTS,
) -> Diagnoses:
    """Diagnose every subject that failed, up to a number.

    Args:
        request: What the gate was asked.
        results: Its results.
        progress: Called before each diagnosis.
        large: The model is large; subjects are then run again on the tiny one.
        reproductions: Folder of the shrunk reproduction by subject and dtype.
        findings: What its exact checks found. A subject that fails by them alone is not run again.
        faults: The catalogue that is planted.

    Returns:
        The diagnoses; nothing where nothing failed.
    """
    failures = [f for subject in request.subjects if (f := _failure(subject, results, findings)) is not None]
    if not failures:
        return Diagnoses()
    failures.sort(key=lambda failure: not failure.failing)  # what fails by exact checks alone needs least to be said
    with_routers = request.objective.router_aux_loss_coef > 0
    if with_routers:  # of which gradients and losses are not made of log-probs alone
        request = replace(request, objective=without_router_loss(request.objective))
    own_model = not large and vocabulary_size(request.model) <= _LARGEST_VOCABULARY
    benches: dict[_BenchKey, Diagnostician] = {}
    records = []
    for number, failure in enumerate(failures[:AT_MOST]):
        progress(number, min(len(failures), AT_MOST), f"diagnosis of {failure.subject.name}")
        found, dtype = _diagnose(failure, request, own_model, benches, faults)
        if with_routers and failure.failing:
            found = _beside_routers(found, failure)
        reproduction = reproductions.get((failure.subject.name, failure.dtype), "")
        records.append(_record(failure, found, dtype, request, own_model, reproduction))
    left_out = ", ".join(failure.subject.name for failure in failures[AT_MOST:])
    notes = (f"at most {AT_MOST} subjects are diagnosed in a run; not diagnosed: {left_out}",) if left_out else ()
    return Diagnoses(records=tuple(records), notes=notes)


def _failure(subject: Subject, results: Sequence[Result], findings: Sequence[Finding]) -> _Failure | None:
    own = [result for result in results if result.subject == subject.name]
    failed = [f for f in findings if f.subject == subject.name and f.verdict is Verdict.FAIL]
    failing_in = {result.dtype for result in own if result.verdict is Verdict.FAIL} | {f.dtype for f in failed}
    dtypes = [dtype for dtype in DTYPE_NAMES if dtype in failing_in]
    if not dtypes:
        return None
    of_dtype = [result for result in own if result.dtype == dtypes[0]]
    return _Failure(
        subject=subject,
        dtype=dtypes[0],
        failing=tuple(result for result in of_dtype if result.verdict is Verdict.FAIL),
        passing=tuple(result for result in of_dtype if result.verdict is Verdict.PASS),
        findings=tuple(finding for finding in failed if finding.dtype == dtypes[0]),
        other_dtypes=tuple(dtypes[1:]),
    )


_BenchKey = tuple[str, ModelRequest, bool]
"""Dtype, model with its frozen policy, and whether it is a reward model."""


@dataclass(frozen=True, slots=True)
class _Ground:
    """Failing cases that are run on one model."""

    model: ModelRequest
    is_reward_model: bool
    cases: tuple[Case, ...]


def _diagnose(
    failure: _Failure,
    request: GateRequest,
    own_model: bool,
    benches: dict[_BenchKey, Diagnostician],
    faults: tuple[Fault, ...],
) -> tuple[Diagnosis, str]:
    """The diagnosis and the dtype it was made in: float32 where only bfloat16 failed, if it fails there too."""
    if not failure.failing:
        suspects = rank(exact_check_suspects(failure.findings, parity_holds=True), [])
        notes = (_EXACT_ALONE, *_cases_of(failure.findings, request))
        return Diagnosis(case=failure.findings[0].case, suspects=suspects, notes=notes), failure.dtype
    found = Diagnosis()
    for ground in _grounds(failure, request, own_model):
        for dtype in ("float32", "bfloat16") if failure.dtype == "bfloat16" else (failure.dtype,):
            found = _on_ground(ground, dtype, failure, request, own_model, benches, faults)
            if found.case:
                return found, dtype
    suspects = rank(exact_check_suspects(failure.findings, parity_holds=False), [])
    return replace(found, suspects=suspects), failure.dtype


def _beside_routers(found: Diagnosis, failure: _Failure) -> Diagnosis:
    """What is said of a subject that was run again without the loss of routers: if nothing is wrong then, that is."""
    if found.case:
        return replace(found, notes=(*found.notes, "run again without the loss of routers, where it fails too"))
    off = {j.quantity for result in failure.failing for j in result.judgements if j.verdict is Verdict.FAIL}
    if off & {"router_shares", "router_probs"}:
        suspect = Suspect("routers", MEASURED, "the balance of the routers is another one")
    elif any(note.startswith(SAME_VALUES) for note in found.notes):
        suspect = Suspect("routers", INFERRED, "without the loss of the routers no value differs")
    else:  # it did not run
        return found
    return replace(found, suspects=(suspect, *found.suspects))


def _on_ground(
    ground: _Ground,
    dtype: str,
    failure: _Failure,
    request: GateRequest,
    own_model: bool,
    benches: dict[_BenchKey, Diagnostician],
    faults: tuple[Fault, ...],
) -> Diagnosis:
    key = dtype, ground.model, ground.is_reward_model
    try:
        if key not in benches:
            benches[key] = Diagnostician(
                Workbench(
                    request=ground.model,
                    dtype=dtype,
                    objective=preference_beside(request.objective),
                    policy=request.policy,
                    seed=request.seed,
                    variations=request.variations if own_model else tuple(VARIATIONS),
                    faults=faults,
                    is_reward_model=ground.is_reward_model,
                )
            )
        return benches[key].diagnose(failure.subject, ground.cases, findings=failure.findings)
    except Exception as error:  # the verdict stands without a diagnosis and must not be lost with it
        return Diagnosis(notes=(f"the diagnosis itself failed: {said_by(error)}",))


def _grounds(failure: _Failure, request: GateRequest, own_model: bool) -> Iterator[_Ground]:
    """The failing cases by the model that they are run on: that of the run first, and log-probs before rewards.

    A large model is stood for by the tiny one, with the same frozen policy; that one sees no images.
    """
    failed = {result.case for result in failure.failing}
    by_model: dict[tuple[ModelRequest, bool], list[Case]] = {}
    for case in request.cases:
        if case.name in failed and (own_model or not case.has_images):
            key = request.model_of(case), case.objective_name == REWARD_MODEL
            by_model.setdefault(key, []).append(case)
    for model, is_reward_model in sorted(by_model, key=lambda key: (key[1], key[0] != request.model)):
        cases = tuple(by_model[model, is_reward_model])
        if not own_model:
            tiny = ModelRequest(
                name="tiny",
                device=model.device,
                seed=request.seed,
                lora=LoraSpec(strength=0.3),
                reference=model.reference,
                train=model.train,
            )
            cases = _tiny(cases, vocabulary_size(tiny), request.seed)
            yield _Ground(tiny, is_reward_model, tuple(over(case, _own(tiny)) for case in cases))
        else:
            yield _Ground(model, is_reward_model, cases)


def _own(model: ModelRequest) -> ReferenceName | None:
    """The frozen policy that a case says that it is over, on a model: none where that is the usual one."""
    return None if model.reference == "adapters-off" else model.reference


def _cases_of(findings: Sequence[Finding], request: GateRequest) -> tuple[str, ...]:
    """The small cases of exact checks that failed, in words: no reproduction of them is written."""
    failed = {finding.case for finding in findings}
    cases = check_cases(vocabulary_size(request.model), request.seed).by_name
    return tuple(f"case {name}: {case_in_words(case)}" for name, case in cases.items() if name in failed)


def _tiny(failing: Sequence[Case], vocab_size: int, seed: int) -> tuple[Case, ...]:
    """Of the tiny cases those with the kinds and objectives of cases that failed."""
    kinds = {(case.kind, case.objective_name) for case in failing}
    failed = {name for _, name in kinds}
    preference = next((name for name in COMPARING_NAMES if name in failed), COMPARING_NAMES[0])
    return tuple(
        case
        for case in (under(case, preference) for case in tiny_cases(vocab_size, seed))
        if (case.kind, case.objective_name) in kinds and (case.kind != "pairs" or case.name in _OTHER_TINY_CASES)
    )


def _record(
    failure: _Failure, found: Diagnosis, dtype: str, request: GateRequest, own_model: bool, reproduction: str
) -> DiagnosisRecord:
    by_name = {case.name: case for case in request.cases}
    over_cases = case_patterns(
        [by_name[result.case] for result in failure.failing], [by_name[result.case] for result in failure.passing]
    )
    notes = list(found.notes)
    if not own_model and failure.failing:
        notes.insert(0, "the subject was run again on the tiny model: nothing was planted in the model of the run")
    if dtype != failure.dtype:
        notes.insert(0, f"diagnosed in {dtype}, where it fails too")
    if failure.other_dtypes:
        notes.append(f"it fails in {' and '.join(failure.other_dtypes)} too")
    if not found.case:
        notes.append("the subject did not fail again: what is said here comes from the results of the gate alone")
    return DiagnosisRecord(
        subject=failure.subject.name,
        dtype=cast(DtypeName, failure.dtype),
        case=found.case or failure.failing[0].case,
        worst=_worst(failure),
        patterns=[pattern.sentence for pattern in (*found.patterns, *over_cases)],
        stages=[StageRecord(stage=s.stage, distance=s.distance, because=s.because) for s in found.suspects],
        nearest=[
            NearFaultRecord(fault=n.fault.name, stage=n.fault.stage, what=n.fault.what, distance=n.distance)
            for n in found.nearest
        ],
        first_layer=found.first_layer,
        odd_one_out=found.odd_one_out,
        reproduction=reproduction,
        notes=notes,
    )


def _worst(failure: _Failure) -> str:
    """The place that is furthest beyond its budget, over all failing cases; else that of an exact check."""
    if not failure.failing:
        return describe_finding(max(failure.findings, key=lambda finding: finding.ratio))
    judged = [
        (judgement, result.case)
        for result in failure.failing
        for judgement in result.judgements
        if judgement.verdict is Verdict.FAIL and judgement.worst
    ]
    if not judged:
        return f"case {failure.failing[0].case}: {'; '.join(failure.failing[0].reasons)}"
    judgement, case = max(judged, key=lambda item: item[0].ratio)
    place = judgement.worst[0]
    return (
        f"case {case}, {judgement.quantity}: {place.where}, {place.actual:.6g} where {place.expected:.6g} was expected "
        f"({judgement.ratio:.3g} times the budget)"
    )

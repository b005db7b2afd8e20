"""``packparity faults`` from prepared runs of the gate to the kill matrix."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from reports.kill_matrix import CatchRecord, KernelRecord, KillMatrix, MutationRecord
from reports.record_names import DtypeName
from verify.checks.check import Finding
from verify.comparison import StructureError
from verify.environment import read_environment
from verify.fault_request import FaultPiece, PlannedRun, PreparedFaults
from verify.faults.exact_checks import ExactFaultWork
from verify.faults.fault import EquivalentMutant, Fault
from verify.faults.kernels import NoisyKernel
from verify.faults.kill_matrix import Catch, Kill, kill_of, verdict_of
from verify.garbage import seldom_collected
from verify.gate import GateOutcome, Progress, count_steps, judge_pieces
from verify.gate_pieces import Piece
from verify.gate_work import GateWork, PieceDone, WitnessError
from verify.models.request import ModelRequest
from verify.packed_proof import summarise
from verify.recording import RunFacts, run_fields
from verify.subject import SubjectError
from verify.threads import torch_threads
from verify.workers import Begin, work_through


def run_faults(
    prepared: PreparedFaults, progress: Progress, *, command: Sequence[str], started: float, import_s: float
) -> KillMatrix:
    """Run ``packparity faults``.

    Args:
        prepared: What to run.
        progress: Called with what is being done.
        command: The command line, for the record.
        started: ``time.perf_counter()`` when the program began.
        import_s: Wall time of the imports.

    Returns:
        The kill matrix.

    Raises:
        WitnessError: The unpacked path cannot be run.
        WorkerError: One of several processes ended early.
    """
    with torch_threads(1), seldom_collected():
        outcomes, findings = _run_all(prepared, progress)
        environment = read_environment(prepared.runs[0].request.model.device)
    kills = [
        (kill, run)
        for run, outcome, found in zip(prepared.runs, outcomes, findings, strict=True)
        for kill in _kills(run, outcome, found)
    ]
    cases = {case.name: case for run in prepared.runs for case in run.request.cases}
    first = replace(prepared.runs[0].request, cases=tuple(cases.values()))
    seed = first.seed
    facts = RunFacts(
        command=command,
        environment=environment,
        import_s=import_s,
        total_s=time.perf_counter() - started,
        seeds={"weights": seed, "adapters": seed + 1, "passes": seed, "cases": seed},
        data=None,
        notes=prepared.notes,
        num_processes=prepared.num_processes,
    )
    passes_s = sum(outcome.model_passes_s for outcome in outcomes)
    return KillMatrix(
        **run_fields(first, outcomes[0].model, facts, passes_s=passes_s),
        verdict=verdict_of([kill for kill, _ in kills]).value,
        num_compared=sum(result.num_compared for outcome in outcomes for result in outcome.results),
        mutations=[_mutation_record(kill, run, of_record=first.model) for kill, run in kills],
        kernels=[_kernel_record(run.kernel) for run in prepared.runs if run.kernel is not None],
        notes=list(dict.fromkeys((*prepared.notes, *(note for outcome in outcomes for note in outcome.notes)))),
    )


class _FaultWork:
    """Does one piece after another; keeps a model of each run."""

    def __init__(self, runs: Sequence[PlannedRun]) -> None:
        self._runs = runs
        self.gates = [GateWork(run.request) for run in runs]
        self._exact = [ExactFaultWork(run.request) for run in runs]

    def __call__(self, fault_piece: FaultPiece, begin: Begin) -> PieceDone | tuple[Finding, ...]:
        number, piece = fault_piece.run, fault_piece.piece
        if isinstance(piece, Piece):
            kernel = self._runs[number].kernel
            where = f"{kernel.name}: " if kernel else ""
            return self.gates[number](piece, lambda text: begin(where + text))
        try:
            return self._exact[number](piece.dtype, piece.mutation, begin, piece.objective)
        except (SubjectError, StructureError) as error:
            raise WitnessError(f"exact checks: the unpacked path cannot be compared: {error}") from error


def _run_all(prepared: PreparedFaults, progress: Progress) -> tuple[list[GateOutcome], list[list[Finding]]]:
    """Outcome of the gate and findings of the exact checks for each run, with one count of steps over all of them."""
    runs, pieces, work = prepared.runs, prepared.pieces, _FaultWork(prepared.runs)
    steps = sum(run.request.num_steps + len(run.exact_pieces) for run in runs)
    done = work_through(pieces, work, count_steps(progress, steps), num_processes=prepared.num_processes)
    by_run = [[d for piece, d in zip(pieces, done, strict=True) if piece.run == number] for number in range(len(runs))]
    outcomes = [
        judge_pieces(run.request, [d for d in of_run if isinstance(d, PieceDone)], gate)
        for run, of_run, gate in zip(runs, by_run, work.gates, strict=True)
    ]
    findings = [[f for d in of_run if not isinstance(d, PieceDone) for f in d] for of_run in by_run]
    return outcomes, findings


def _kills(run: PlannedRun, outcome: GateOutcome, findings: Sequence[Finding]) -> list[Kill]:
    own: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        own.setdefault((finding.subject, finding.dtype), []).append(finding)
    return [
        kill_of(run.mutations[summary.subject], summary, own.get((summary.subject, summary.dtype), []))
        for summary in summarise(outcome.results, run.request.subjects, run.request.dtypes)
    ]


def _kernel_record(kernel: NoisyKernel) -> KernelRecord:
    return KernelRecord(
        name=kernel.name, what=kernel.what, why_harmless=kernel.why_harmless, imitates=list(kernel.imitates)
    )


def _mutation_record(kill: Kill, run: PlannedRun, *, of_record: ModelRequest) -> MutationRecord:
    mutation = kill.mutation
    is_fault = isinstance(mutation, Fault)
    return MutationRecord(
        name=mutation.name,
        kind="fault" if is_fault else "equivalent",
        stage=mutation.stage,
        what=mutation.what,
        imitates=list(mutation.imitates),
        signature=mutation.signature if isinstance(mutation, Fault) else cast(EquivalentMutant, mutation).why_equal,
        bites_where=mutation.bites_where.words,
        invisible_where=mutation.invisible_where if isinstance(mutation, Fault) else "everywhere",
        must_kill=list(mutation.must_kill) if isinstance(mutation, Fault) else [],
        must_kill_in=cast(list[DtypeName], list(mutation.dtypes)) if isinstance(mutation, Fault) else [],
        kernel=run.kernel.name if run.kernel else "",
        model="" if run.request.model == of_record else _name_of(run.request.model),
        dtype=cast(DtypeName, kill.dtype),
        cases=list(kill.cases),
        outcome=kill.outcome.value,
        reasons=list(kill.reasons),
        margin=kill.margin,
        weakest_margin=kill.weakest_margin,
        weakest_case=kill.weakest_case,
        caught_by=list(kill.caught_by),
        sole_check=kill.sole_check,
        catches=[_catch_record(catch) for catch in kill.catches],
    )


def _name_of(model: ModelRequest) -> str:
    return model.name if model.train == "lora" else f"{model.name}, every weight trained"


def _catch_record(catch: Catch) -> CatchRecord:
    return CatchRecord(
        check=catch.check,
        distance=catch.kind or "",
        killed=catch.killed,
        margin=catch.margin,
        case=catch.case,
        where=catch.where,
    )

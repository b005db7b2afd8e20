"""From a prepared ``packparity check`` to a run of the gate and its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from reports.record import Record
from reports.record_setting import Environment
from verify.check_cases import data_record
from verify.check_notes import notes_of
from verify.check_request import PreparedCheck
from verify.environment import read_environment
from verify.expectation import UnfitModelError
from verify.garbage import seldom_collected
from verify.gate import GateOutcome, Progress, run_gate
from verify.models.checkpoint import CheckpointError
from verify.proof_of_life.findings import prove, without_planted
from verify.recording import RunFacts, record_run
from verify.subject import said_by
from verify.threads import torch_threads

if TYPE_CHECKING:
    from verify.diagnosis.run import Diagnoses
    from verify.shrink.run import Reproduction


class GateError(Exception):
    """The gate failed on a request that was found good."""


@contextmanager
def subjects_end_nothing() -> Iterator[None]:
    """Turn what would end the program with a status of its own into a failure of the gate.

    A subject that calls ``sys.exit(0)`` where it is only asked for its name must not end a run with the status of a
    PASS.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise GateError(f"a subject raised {said_by(error)}") from error


def run_check(
    prepared: PreparedCheck,
    progress: Progress,
    *,
    command: Sequence[str],
    started: float,
    import_s: float,
    meanwhile: Callable[[], object] = lambda: None,
) -> Record:
    """Run ``packparity check``.

    Args:
        prepared: The request.
        progress: Called with what is being done.
        command: The command line, for the record.
        started: ``time.perf_counter()`` when the program began.
        import_s: Wall time of the imports.
        meanwhile: Done in this process while others work, where the run is shared.

    Returns:
        The record of the run.

    Raises:
        CheckpointError: The weights of a checkpoint do not fit its config.
        UnfitModelError: The oracle does not know the model, and it is not causal.
        GateError: The gate itself failed; nothing is known about any subject.
    """
    request, options, loaded = prepared.request, prepared.options, prepared.loaded
    plantings = prepared.plantings
    try:
        with torch_threads(prepared.num_threads), nullcontext() if prepared.large else seldom_collected():
            outcome = run_gate(
                prepared.gate_request,
                progress,
                prepared.checks,
                num_processes=prepared.num_processes,
                meanwhile=meanwhile,
            )
            environment = read_environment(request.model.device)
            reproductions = _reproductions(prepared, outcome, environment, progress) if options.shrink else ()
            diagnoses = _diagnoses(prepared, outcome, reproductions, progress)
    except (CheckpointError, UnfitModelError):
        raise
    except ValueError as error:
        raise GateError(f"the gate itself failed: {error}") from error
    seeds = {"weights": options.seed, "adapters": options.seed + 1, "passes": options.seed}
    if options.cases_file is None:
        seeds["sample" if loaded else "cases"] = options.seed
    facts = RunFacts(
        command=command,
        environment=environment,
        import_s=import_s,
        total_s=time.perf_counter() - started,
        seeds=seeds,
        data=data_record(loaded, request.cases) if loaded else None,
        notes=[
            *notes_of(prepared, outcome.model.num_layers_published),
            *(f"{r.subject} in {r.dtype}: {r.folder or 'no reproduction'}: {r.note}" for r in reproductions),
            *diagnoses.notes,
        ],
        num_processes=prepared.num_processes,
        every_subject_must_run=bool(options.subjects),
    )
    # How much rounding hides on a tiny model is known of those that the catalogue was measured on.
    proof = prove(request, outcome, plantings, is_tiny=options.is_tiny and not request.model.family)
    return record_run(request, without_planted(outcome, plantings), facts, proof=proof, diagnoses=diagnoses.records)


def _diagnoses(
    prepared: PreparedCheck, outcome: GateOutcome, reproductions: Sequence[Reproduction], progress: Progress
) -> Diagnoses:
    from verify.diagnosis.run import diagnose_failures

    folders = {(r.subject, r.dtype): r.folder for r in reproductions}
    return diagnose_failures(
        prepared.request,
        outcome.results,
        progress,
        large=prepared.large,
        reproductions=folders,
        findings=outcome.findings,
    )


def _reproductions(
    prepared: PreparedCheck, outcome: GateOutcome, environment: Environment, progress: Progress
) -> tuple[Reproduction, ...]:
    from verify.shrink.reproduction import Setting
    from verify.shrink.run import Effort, shrink_failures

    request, options = prepared.request, prepared.options
    assert options.out is not None  # found out in prepare_check
    judged = [subject.name for subject in request.subjects]
    # What only exact checks found is left as it is: they have cases of their own, which are small.
    return shrink_failures(
        Setting(
            request=request,
            policy_file=options.policy,
            threads=environment.num_threads,
            versions=environment.packages,
        ),
        [result for result in outcome.results if result.subject in judged],
        named=dict(zip(judged, options.subjects or judged, strict=True)),
        out_dir=options.out,
        effort=Effort(
            seconds=options.shrink_seconds,
            trial_s=outcome.model_passes_s / (len(request.dtypes) * len(request.cases)),
        ),
        progress=progress,
    )

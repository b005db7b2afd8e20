"""From options of ``packparity faults`` to a run of the gate over the catalogue and its kill matrix."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from reports.kill_matrix import CatchRecord, KillMatrix, MutationRecord
from reports.record import DtypeName
from verify.cases import Case, tiny_cases
from verify.environment import read_environment
from verify.faults.catalogue import biting_cases
from verify.faults.fault import EquivalentMutant, Fault, Mutation
from verify.faults.kill_matrix import Catch, Kill, kill_of, verdict_of
from verify.faults.selection import asked_where_it_bites, select_mutations
from verify.gate import GateRequest, Progress, run_gate
from verify.models.lora import LoraSpec
from verify.models.request import DTYPES, ModelRequest, vocabulary_size
from verify.objective import DpoSigmoid
from verify.packed_proof import summarise
from verify.recording import RunFacts, record_run
from verify.subjects.faulty import FaultySubject
from verify.threads import torch_threads
from verify.tolerance import load_policy

OBJECTIVE = DpoSigmoid(beta=0.1, label_smoothing=0.1)
"""No option at the value that hides its absence: beta is not 1, label smoothing not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """Options of the command line, as given."""

    faults: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    cases_per_fault: int = 3
    seed: int = 0
    policy: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planting:
    mutation: Mutation
    subject: FaultySubject


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFaults:
    """A request that was checked and can be run.

    Args:
        request: The run of the gate, with a subject for each mutation.
        mutations: The mutations by the names of their subjects.
        notes: What a reader must know.
    """

    request: GateRequest
    mutations: Mapping[str, Mutation]
    notes: Sequence[str]


def prepare_faults(options: FaultOptions) -> PreparedFaults:
    """Turn options into a run of the gate: the tiny model, with the catalogue's mutations as subjects.

    Noise is measured on all cases, as in ``packparity check``; each fault is run on a few cases that show it.

    Args:
        options: The options.

    Returns:
        The prepared run.

    Raises:
        ValueError: An unknown fault, case or dtype, or a named fault that no case can show.
    """
    model = ModelRequest(name="tiny", seed=options.seed, lora=LoraSpec(strength=0.3))
    cases = _cases(options, vocabulary_size(model))
    plantings, notes = _plantings(options, cases)
    request = GateRequest(
        model=model,
        dtypes=_dtypes(options),
        subjects=tuple(planting.subject for planting in plantings),
        cases=cases,
        objective=OBJECTIVE,
        policy=load_policy(options.policy),
        seed=options.seed,
    )
    mutations = {planting.subject.name: planting.mutation for planting in plantings}
    return PreparedFaults(request=request, mutations=mutations, notes=notes)


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
    """
    request = prepared.request
    with torch_threads(1):
        outcome = run_gate(request, progress)
        environment = read_environment(request.model.device)
    summaries = summarise(outcome.results, request.subjects, request.dtypes)
    kills = [kill_of(prepared.mutations[summary.subject], summary) for summary in summaries]
    seed = request.seed
    facts = RunFacts(
        command=command,
        environment=environment,
        import_s=import_s,
        total_s=time.perf_counter() - started,
        seeds={"weights": seed, "adapters": seed + 1, "passes": seed, "cases": seed},
        data=None,
        notes=prepared.notes,
    )
    run = record_run(request, outcome, facts)
    return KillMatrix(
        tool_version=run.tool_version,
        command=run.command,
        created_utc=run.created_utc,
        verdict=verdict_of(kills).value,
        environment=run.environment,
        model=run.model,
        objective=run.objective,
        seeds=run.seeds,
        policy=run.policy,
        num_compared=run.num_compared,
        cases=run.cases,
        mutations=[_mutation_record(kill) for kill in kills],
        timing=run.timing,
        notes=run.notes,
    )


def _dtypes(options: FaultOptions) -> tuple[str, ...]:
    for dtype in options.dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}: give {', '.join(DTYPES)}")
    return options.dtypes or ("float32",)


def _cases(options: FaultOptions, vocab_size: int) -> tuple[Case, ...]:
    cases = tiny_cases(vocab_size, options.seed)
    names = [case.name for case in cases]
    for name in options.cases:
        if name not in names:
            raise ValueError(f"unknown case {name!r}: give some of {', '.join(names)}")
    return tuple(case for case in cases if not options.cases or case.name in options.cases)


def _plantings(options: FaultOptions, cases: tuple[Case, ...]) -> tuple[list[_Planting], list[str]]:
    plantings, left_out = [], []
    for selected in select_mutations(options.faults):
        mutation = asked_where_it_bites(selected, cases)
        chosen = biting_cases(mutation, cases, options.cases_per_fault)
        if chosen:
            subject = FaultySubject(mutation=mutation, cases=frozenset(case.name for case in chosen))
            plantings.append(_Planting(mutation=mutation, subject=subject))
        elif options.faults or not options.cases:
            raise ValueError(f"fault {mutation.name}: no case can show it; it bites where {mutation.bites_where.words}")
        else:
            left_out.append(mutation.name)
    if not plantings:
        raise ValueError("no fault of the catalogue bites on the cases that were named: nothing would be proven")
    notes = [f"left out, since no named case can show them: {', '.join(left_out)}"] if left_out else []
    return plantings, notes


def _mutation_record(kill: Kill) -> MutationRecord:
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


def _catch_record(catch: Catch) -> CatchRecord:
    return CatchRecord(
        check=catch.check,
        distance=catch.kind or "",
        killed=catch.killed,
        margin=catch.margin,
        case=catch.case,
        where=catch.where,
    )

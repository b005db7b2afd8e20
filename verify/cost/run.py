"""A run of ``packparity cost`` on one rank: model, workloads one after another, record."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, cast

import torch

from reports.cost_record import CitedParityRecord, CostPathRecord, CostRecord, MemoryMeasure
from reports.cost_store import COST_FILES
from reports.record_names import DtypeName
from reports.record_setting import Environment, ModelRecord
from reports.store import discard_results
from reports.values import Settings
from reports.words import plural
from verify.cost.clock import CLOCK, Clock
from verify.cost.comparison import differing_conditions, recorded_ratios
from verify.cost.device import Device, load, machine_memory
from verify.cost.figures import workload_record
from verify.cost.journal import Done, Journal, JournalSettings
from verify.cost.kept_states import KeptStates
from verify.cost.measure import Bench, measure_workload
from verify.cost.parity_evidence import MeasuredSubject, cite
from verify.cost.procedure import MEMORY_MEANINGS, not_measured, notes_on, procedure
from verify.cost.ranks import Ranks
from verify.cost.request import PreparedCost, settings_of
from verify.cost.training import Trainer
from verify.environment import read_environment
from verify.gate import Progress
from verify.models.request import build_model
from verify.packing_plan.costs import FlopPrices
from verify.packing_plan.decoder_sizes import read_decoder_sizes
from verify.recording import model_record
from verify.sharded.agreement import check_agreement, check_same_start, check_same_weights
from verify.subjects.sharded import shard
from verify.threads import torch_threads
from verify.tool_version import tool_version

_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """Where and as what this process runs.

    Args:
        ranks: The ranks, from here.
        progress: Told what is being done.
        command: The command line.
        started: When the program began, by ``time.perf_counter``.
        clock: The clocks of steps.
    """

    ranks: Ranks
    progress: Progress
    command: Sequence[str]
    started: float
    clock: Clock = CLOCK


def run_cost(prepared: PreparedCost, place: RunPlace) -> CostRecord:
    """Measure, on this rank with all others.

    Args:
        prepared: What to measure.
        place: Where.

    Returns:
        The record; the same on every rank.

    Raises:
        ValueError: The parity record is no evidence for this run, or the journal is of another one.
        MeasurementError: A path is not what it claims to be.
        ClockError: A clock stepped back.
        NotFiniteError: A loss is not finite.
    """
    with torch_threads(prepared.threads):
        return _run(prepared, place)


def _run(prepared: PreparedCost, place: RunPlace) -> CostRecord:
    if place.ranks.num_ranks > 1:
        check_same_start(place.command[1:], prepared.device)
    environment = read_environment(prepared.device)
    machine = _machine(prepared, environment)
    load_before = load()
    place.progress(0, 1, f"building {prepared.model.name}")
    built = build_model(prepared.model, prepared.dtype)
    model = model_record(prepared.model, built)
    cited = _cited(prepared, environment, model)
    if place.ranks.num_ranks > 1:
        _check_same_input(prepared, built.model)
        shard(built.model)
    bench = _bench(prepared, place, built.model, environment, machine)
    before = _done_before(prepared, bench)
    done = []
    for number, plan in enumerate(prepared.plans):
        done.append(measure_workload(bench, number, plan, before.get(number, Done())))
    prices = _prices(prepared, model.num_layers)
    workloads = [
        workload_record(
            plan,
            of_plan,
            bench.paths,
            prices,
            num_ranks=prepared.num_ranks,
            pairs_per_rank=prepared.pairs_per_rank,
            seed=prepared.model.seed,
        )
        for plan, of_plan in zip(prepared.plans, done, strict=True)
    ]
    paths = [_path_record(path, prepared, cited) for path in prepared.paths]
    not_applicable: dict[str, str] = {path.name: path.reason for path in paths if path.reason}
    preset = prepared.preset
    sessions = 1 + max(step.session for workload in workloads for step in workload.steps)
    return CostRecord(
        tool_version=tool_version(),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(place.command),
        environment=environment,
        machine={**machine, "load_at_start": load_before},
        model=model,
        dtype=cast(DtypeName, prepared.dtype),
        objective=dict(prepared.objective.settings),
        optimizer=dict(prepared.optimizer.settings),
        preset=preset.name if preset else "",
        scale=prepared.scale,
        seeds={"weights": prepared.model.seed, "adapters": prepared.model.seed + 1, "bootstrap": prepared.model.seed},
        num_ranks=prepared.num_ranks,
        pairs_per_rank=prepared.pairs_per_rank,
        sharding=_sharding(prepared.num_ranks),
        memory_measure=bench.memory_measure,
        memory_meaning=MEMORY_MEANINGS[bench.memory_measure],
        paths=paths,
        workloads=workloads,
        recorded=recorded_ratios(preset.name, workloads, not_applicable, _shape(prepared)) if preset else [],
        conditions=_conditions(prepared, model) if preset else [],
        data=_data(prepared),
        procedure=procedure(bench.memory_measure),
        not_measured=not_measured(prepared, not_applicable),
        notes=[*prepared.notes, *notes_on(sessions, load_before, model)],
        total_s=time.perf_counter() - place.started,
    )


def _machine(prepared: PreparedCost, environment: Environment) -> dict[str, Any]:
    """What times and peaks depend on beside versions; nothing that names the machine."""
    machine: dict[str, Any] = {
        "processor": environment.processor,
        "cores": os.cpu_count(),
        "memory_bytes": machine_memory(),
        "device": environment.device,
        "threads": environment.num_threads,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        **{name: os.environ[name] for name in _ALLOCATOR_SETTINGS if name in os.environ},
    }
    if Device(prepared.device).is_cuda:
        machine["device_memory_bytes"] = torch.cuda.get_device_properties(prepared.device).total_memory
    return machine


def _cited(prepared: PreparedCost, environment: Environment, model: ModelRecord) -> dict[str, CitedParityRecord]:
    if prepared.parity is None:
        return {}
    subjects = [path.subject.name for path in prepared.measured_paths if path.role == "packed"]
    measured = MeasuredSubject(
        environment=environment,
        model=model,
        dtype=prepared.dtype,
        objective=prepared.objective.name,
        settings=prepared.objective.settings,
        num_ranks=prepared.num_ranks,
    )
    return cite(prepared.parity, measured, subjects)


def _bench(prepared: PreparedCost, place: RunPlace, model: Any, environment: Environment, machine: Settings) -> Bench:
    trainer = Trainer(model.train(), prepared.optimizer, prepared.objective)
    out, rank = prepared.options.out, place.ranks.rank
    total = sum(plan.num_steps * len(prepared.measured_paths) for plan in prepared.plans)
    num_begun = 0

    def begin(text: str) -> None:
        nonlocal num_begun
        num_begun += ": step " in text
        place.progress(min(num_begun, total), total, text)

    settings = JournalSettings(options=settings_of(prepared), versions=environment.packages, machine=machine)
    return Bench(
        trainer=trainer,
        start=trainer.state(),
        paths=prepared.measured_paths,
        device=Device(prepared.device),
        clock=place.clock,
        ranks=place.ranks,
        memory_measure=_memory_measure(prepared),
        pairs_per_rank=prepared.pairs_per_rank,
        journal=Journal(out, settings) if out is not None and rank == 0 else None,
        states=KeptStates(out, rank) if out is not None else None,
        begin=begin,
    )


def _memory_measure(prepared: PreparedCost) -> MemoryMeasure:
    """Sharding allocates and frees storages in place, which following them does not see."""
    if Device(prepared.device).is_cuda:
        return "cuda-allocator"
    return "live-bytes" if prepared.num_ranks == 1 else "resident"


def _done_before(prepared: PreparedCost, bench: Bench) -> dict[int, Done]:
    """What an interrupted run has done, on every rank; rank 0 reads the journal, or begins it."""
    done: dict[int, Done] = {}
    problem: Exception | None = None
    if bench.journal is not None:
        try:
            if prepared.options.resume:
                done = bench.journal.resume()
            else:
                bench.journal.start()
            # Only now: whoever forgets --resume keeps what an earlier run has found; an interrupted one leaves none.
            discard_results(bench.journal.path.parent, COST_FILES)
        except ValueError as error:
            problem = error
    done, problem = bench.ranks.gathered((done, problem))[0]
    if problem is not None:
        raise problem
    bench.session = 1 + max((step.session for d in done.values() for step in d.steps), default=-1)
    if not prepared.options.resume and bench.states is not None:
        for number in range(len(prepared.plans)):
            bench.states.forget(number)  # of a run whose journal is gone
    return done


def _check_same_input(prepared: PreparedCost, model: Any) -> None:
    """Refuse ranks with another data file or other weights, as ranks on other machines may have. A collective."""
    if prepared.data is not None:
        check_agreement("data", {prepared.data.file: f"SHA-256 {prepared.data.sha256[:16]}"})
    check_same_weights(model, prepared.dtype)


def _path_record(path: Any, prepared: PreparedCost, cited: dict[str, CitedParityRecord]) -> CostPathRecord:
    reason = path.not_applicable(torch.device(prepared.device).type)
    return CostPathRecord(
        name=path.name,
        role=path.role,
        how=path.how,
        subject=path.subject.name,
        state="NOT_APPLICABLE" if reason else "measured",
        reason=reason,
        parity=cited.get(path.subject.name),
    )


def _prices(prepared: PreparedCost, num_layers: int) -> FlopPrices | None:
    with suppress(ValueError):  # a family whose FLOPs are counted in another way
        sizes = read_decoder_sizes(prepared.model.name).sizes
        whole = FlopPrices.of(sizes)
        per_layer = (whole.by_token // sizes.num_hidden_layers, whole.by_pair // sizes.num_hidden_layers)
        return FlopPrices(per_layer[0] * num_layers, per_layer[1] * num_layers, whole.by_predictor)
    return None


def _sharding(num_ranks: int) -> Settings:
    if num_ranks == 1:
        return {}
    return {"by": "FSDP2 (fully_shard), each decoder layer and the root", "reshard_after_forward": True}


def _conditions(prepared: PreparedCost, model: ModelRecord) -> list[Any]:
    entering = [plan for plan in prepared.plans if plan.enters_comparison]
    random = not (prepared.data and prepared.data.groups) or any("random" in note for note in prepared.notes)
    return differing_conditions(
        model=model.name,
        num_layers=model.num_layers,
        dtype=prepared.dtype,
        device=prepared.device,
        num_ranks=prepared.num_ranks,
        pairs_per_rank=prepared.pairs_per_rank,
        lengths="; ".join(f"{plan.name}: {plan.source}, {plural(plan.num_steps, 'step')}" for plan in entering),
        tokens="random" if random else "of the file",
    )


def _shape(prepared: PreparedCost) -> str:
    return prepared.data.shape if prepared.data else ""


def _data(prepared: PreparedCost) -> Settings:
    if prepared.data is None:
        return {}
    data = asdict(prepared.data)
    return {name: data[name] for name in ("file", "sha256", "shape", "rows_read", "counted", "left_out")}

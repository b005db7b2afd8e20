"""Measuring one workload: warm-up apart, then rounds of one step of every path, forwards and backwards in turn.

Rounds of the paths A, B, C run as A B C, C B A, A B C, ...: what drifts (heat, other work on the machine) meets every
path alike, and steps of a round lie next to one another.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from reports.cost_record import HeldOutRecord, MemoryMeasure, StepRecord
from verify.cost.clock import Clock, timed
from verify.cost.device import Device, num_compiled, peak_resident
from verify.cost.journal import Done, Journal
from verify.cost.kept_states import KeptStates
from verify.cost.live_bytes import LiveBytes
from verify.cost.paths import Path
from verify.cost.ranks import Ranks
from verify.cost.training import Trainer, TrainingState, finite_loss
from verify.cost.workload import WorkloadPlan, lengths_of
from verify.groups import PreferenceGroup
from verify.slots import count_slots

WARM_UP_STEPS = 2

Batch = tuple[PreferenceGroup, ...]
Phase = Literal["warm-up", "measured"]
When = Literal["start", "end"]
Begin = Callable[[str], None]
"""Called with what is being done, at each step."""


class MeasurementError(Exception):
    """What was measured is not what the path claims to be."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """What all workloads of a run are measured with, on one rank.

    Args:
        trainer: Model and optimizer.
        start: The state that every path of every workload starts from.
        paths: The paths to measure.
        device: Where the model is.
        clock: The clocks.
        ranks: The ranks.
        memory_measure: What counts memory.
        pairs_per_rank: Pairs of a step, on each rank.
        journal: Where rank 0 writes what was read; None for nowhere.
        states: Where this rank keeps states; None for nowhere.
        session: How often the run was resumed.
        begin: Told what is being done.
        live_bytes: Peaks that were followed before, by path and lengths: they depend on nothing else.
    """

    trainer: Trainer
    start: TrainingState
    paths: tuple[Path, ...]
    device: Device
    clock: Clock
    ranks: Ranks
    memory_measure: MemoryMeasure
    pairs_per_rank: int
    journal: Journal | None
    states: KeptStates | None
    session: int = 0
    begin: Begin = lambda text: None
    live_bytes: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)


def order_of(round_number: int, paths: Sequence[Path]) -> tuple[Path, ...]:
    """The order of paths in a round: forwards in even ones, backwards in odd ones."""
    return tuple(paths) if round_number % 2 == 0 else tuple(reversed(paths))


def measure_workload(bench: Bench, number: int, plan: WorkloadPlan, done: Done) -> Done:
    """Measure what is left of a workload.

    Args:
        bench: What to measure with.
        number: Number of the workload in its run.
        plan: The workload.
        done: What was measured before, on all ranks.

    Returns:
        All of it, on every rank.

    Raises:
        MeasurementError: A path feeds other slots than its layout has.
        ClockError: A clock stepped back.
        NotFiniteError: A loss is not finite.
    """
    shape = {"num_paths": len(bench.paths), "num_ranks": bench.ranks.num_ranks}
    if done.is_over(num_rounds=plan.num_steps, holds_out=bool(plan.held_out), **shape):
        return done
    batches = [
        ranks[bench.ranks.rank]
        for ranks in plan.batches(num_ranks=bench.ranks.num_ranks, pairs_per_rank=bench.pairs_per_rank)
    ]
    states, first = _states_to_go_on_from(bench, number, done.rounds(**shape))
    done = done.without_rounds_from(first)
    _warm_up(bench, number, plan, batches, done)
    if plan.held_out and len(done.held_out) < len(bench.paths):  # an interruption may have left some of them
        done.held_out = _hold_out(bench, number, plan, {path.name: bench.start for path in bench.paths}, "start")
    for round_number in range(first, plan.num_steps):
        for place, path in enumerate(order_of(round_number, bench.paths)):
            bench.begin(f"{plan.name}: step {round_number + 1} of {plan.num_steps}, {path.name}")
            bench.trainer.put(states[path.name])
            step = _step(bench, path, batches[round_number], "measured", round_number, place)
            states[path.name] = bench.trainer.state()
            done.steps += _written(bench, number, step)
        _keep(bench, number, round_number + 1, states)
    if plan.held_out:
        done.held_out += _hold_out(bench, number, plan, states, "end")
    if bench.states is not None:
        bench.states.forget(number)
    return done


def _states_to_go_on_from(bench: Bench, number: int, num_done: int) -> tuple[dict[str, TrainingState], int]:
    """The states of the last round that the journal holds and that every rank has kept, and how many rounds that is."""
    kept = bench.states.rounds(number) if bench.states is not None else set()
    common = set.intersection(*bench.ranks.gathered(kept))
    usable = [rounds for rounds in common if rounds <= num_done]
    if not usable or bench.states is None:
        return {path.name: bench.start for path in bench.paths}, 0
    states = bench.states.read(number, max(usable))
    return {path.name: states[path.name] for path in bench.paths}, max(usable)


def _keep(bench: Bench, number: int, num_rounds: int, states: dict[str, TrainingState]) -> None:
    if bench.states is None:
        return
    bench.states.write(number, num_rounds, states)
    bench.ranks.wait_for_all()
    bench.states.forget(number, before=num_rounds)


def _warm_up(bench: Bench, number: int, plan: WorkloadPlan, batches: Sequence[Batch], done: Done) -> None:
    """A few steps of every path whose time is not counted: kernels are chosen and compiled, memory is taken."""
    for index in range(min(WARM_UP_STEPS, max(1, len(batches)))):
        for place, path in enumerate(order_of(index, bench.paths)):
            bench.begin(f"{plan.name}: warm-up, {path.name}")
            bench.trainer.put(bench.start)
            with count_slots(bench.trainer.model) as counted:
                step = _step(bench, path, batches[index % len(batches)], "warm-up", index, place)
            _check_slots(path, batches[index % len(batches)], counted.slots, counted.slots_with_grad)
            done.steps += _written(bench, number, step)


def _check_slots(path: Path, batch: Batch, slots: int, slots_of_policy: int) -> None:
    """Hold what passed the embedding against the arithmetic of the layout: a path that fell back would be found out."""
    expected = path.fed(lengths_of(batch)).slots
    if (slots_of_policy, slots) != (expected, 2 * expected):
        raise MeasurementError(
            f"{path.name} fed {slots_of_policy} slots in its policy pass and {slots} in both: its layout has "
            f"{expected} in each, so that something else was measured"
        )


def _step(bench: Bench, path: Path, batch: Batch, phase: Phase, round_number: int, place: int) -> StepRecord:
    """One step of this rank; the path's state is in, and whatever it takes to count memory is done before."""
    followed = _followed(bench, path, batch) if phase == "measured" else None
    gc.collect()
    bench.ranks.wait_for_all()
    compiled, losses = num_compiled(), list[Tensor]()
    allocated = bench.device.reset_peaks()
    resident_before = peak_resident()  # just reset, so that it is what is resident; VmRSS itself lags behind
    duration = timed(
        lambda: losses.append(bench.trainer.step(path.subject, batch)), bench.device.synchronise, bench.clock
    )
    peak_of_process = peak_resident()
    memory: tuple[int | None, int | None]
    match bench.memory_measure:
        case "cuda-allocator":
            memory = allocated, bench.device.peak_allocated()
        case "live-bytes":
            memory = followed or (None, None)
        case "resident":
            # The kernel's counts are approximate: a peak can be read some pages below what was resident before it.
            memory = resident_before, max(peak_of_process or 0, resident_before or 0) or None
    return StepRecord(
        phase=phase,
        session=bench.session,
        round=round_number,
        place=place,
        path=path.name,
        rank=bench.ranks.rank,
        elapsed_ns=duration.wall_ns,
        cpu_ns=duration.cpu_ns,
        graphs_compiled=num_compiled() - compiled,
        loss=finite_loss(losses[0], f"of {path.name} in {phase} step {round_number}"),
        held_bytes=memory[0],
        peak_bytes=memory[1],
        reserved_bytes=bench.device.peak_reserved(),
        host_peak_bytes=peak_of_process,
    )


def _followed(bench: Bench, path: Path, batch: Batch) -> tuple[int, int] | None:
    """Bytes held and peak of a step, where live bytes are the measure: of one more step, which is then undone.

    Following costs time, so that step is not the timed one; bytes depend on shapes alone, so one for each is enough.
    """
    if bench.memory_measure != "live-bytes":
        return None
    key = (path.name, *lengths_of(batch))
    if key not in bench.live_bytes:
        state = bench.trainer.state()
        gc.collect()
        with LiveBytes(bench.trainer.held()) as bytes_of_step:
            held = bytes_of_step.live
            bench.trainer.step(path.subject, batch)
        bench.live_bytes[key] = held, bytes_of_step.peak
        bench.trainer.put(state)
    return bench.live_bytes[key]


def _written(bench: Bench, number: int, step: StepRecord) -> list[StepRecord]:
    """The step as every rank has read it, in the journal before anything else is begun."""
    steps = bench.ranks.gathered(step)
    if bench.journal is not None:
        bench.journal.add_steps(number, steps)
    return steps


def _hold_out(
    bench: Bench, number: int, plan: WorkloadPlan, states: dict[str, TrainingState], when: When
) -> list[HeldOutRecord]:
    """Every path's held-out pairs under its own state; each rank computes its share, no pair twice."""
    size = bench.pairs_per_rank
    mine = plan.held_out[bench.ranks.rank :: bench.ranks.num_ranks]
    records = []
    for path in bench.paths:
        bench.begin(f"{plan.name}: held-out pairs, {path.name}")
        bench.trainer.put(states[path.name])
        losses, margins = 0.0, list[float]()
        for first in range(0, len(mine), size):
            batch = mine[first : first + size]
            loss, of_batch = bench.trainer.margins(path.subject, batch)
            losses += loss * len(batch)
            margins += of_batch
        shares = bench.ranks.gathered((losses, margins))
        # Rank r has pairs r, r + ranks, ...: back into the order in which they were given.
        ordered = [shares[i % len(shares)][1][i // len(shares)] for i in range(len(plan.held_out))]
        loss = sum(share for share, _ in shares) / len(ordered)
        records.append(HeldOutRecord(when=when, path=path.name, loss=loss, margins=ordered))
    if bench.journal is not None:
        bench.journal.add_held_out(number, records)
    return records

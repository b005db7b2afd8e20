"""From the steps of a workload to what they amount to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reports.cost_record import (
    BatchRecord,
    GroupLengthsRecord,
    IntervalRecord,
    PathFigures,
    PathName,
    RatioRecord,
    StepRecord,
    WorkloadRecord,
)
from verify.cost.journal import Done
from verify.cost.paths import Path
from verify.cost.statistics import rank_summed_peak, ratio_of_medians, spread, step_times
from verify.cost.workload import WorkloadPlan, lengths_of
from verify.packing_plan.costs import FlopPrices

_NS = 1e9
StepsByPath = dict[PathName, list[list[StepRecord]]]
"""The measured steps of each path, [rounds][ranks]."""


def workload_record(
    plan: WorkloadPlan,
    done: Done,
    paths: Sequence[Path],
    prices: FlopPrices | None,
    *,
    num_ranks: int,
    pairs_per_rank: int,
    seed: int,
) -> WorkloadRecord:
    """The record of a workload that was measured.

    Args:
        plan: The workload.
        done: Its steps, and what was held out.
        paths: The paths that were measured.
        prices: FLOPs of the model by token, pair and predictor; None where no formula counts them.
        num_ranks: Ranks.
        pairs_per_rank: Pairs of a step on each.
        seed: Seed of the resampling.

    Returns:
        The record.
    """
    batches = [
        _batch_record(round_number, rank, batch, paths, prices)
        for round_number, ranks in enumerate(plan.batches(num_ranks=num_ranks, pairs_per_rank=pairs_per_rank))
        for rank, batch in enumerate(ranks)
    ]
    steps: StepsByPath = {path.name: _by_round(done.steps, path.name) for path in paths}
    figures = [_figures(path.name, steps[path.name], batches) for path in paths]
    unpacked = [each for path, each in zip(paths, figures, strict=True) if path.role == "unpacked"]
    counted = [each for each in unpacked if each.peak_bytes is not None]
    return WorkloadRecord(
        name=plan.name,
        seed=plan.seed,
        source=plan.source,
        enters_comparison=plan.enters_comparison,
        num_rounds=plan.num_steps,
        batches=batches,
        steps=done.steps,
        held_out=done.held_out,
        figures=figures,
        ratios=[
            _ratio(above, below, steps, batches, seed) for above in figures for below in figures if above is not below
        ],
        best_unpacked_time=min(unpacked, key=lambda each: each.median_s).path if unpacked else None,
        best_unpacked_memory=min(counted, key=lambda each: each.peak_bytes or 0).path if counted else None,
    )


def _batch_record(
    round_number: int, rank: int, batch: Sequence[object], paths: Sequence[Path], prices: FlopPrices | None
) -> BatchRecord:
    lengths = lengths_of(batch)  # type: ignore[arg-type]
    fed = {path.name: path.fed(lengths) for path in paths}
    return BatchRecord(
        round=round_number,
        rank=rank,
        groups=[GroupLengthsRecord(prompt=each.prompt, responses=list(each.responses)) for each in lengths],
        slots={name: each.slots for name, each in fed.items()},
        tokens={name: each.tokens for name, each in fed.items()},
        forward_flops={name: prices.flops(each.work) for name, each in fed.items()} if prices else None,
    )


def _by_round(steps: Sequence[StepRecord], path: str) -> list[list[StepRecord]]:
    """The measured steps of a path, [rounds][ranks]."""
    rounds: dict[int, list[StepRecord]] = {}
    for step in steps:
        if step.phase == "measured" and step.path == path:
            rounds.setdefault(step.round, []).append(step)
    return [sorted(rounds[number], key=lambda step: step.rank) for number in sorted(rounds)]


def _wall(steps: Sequence[Sequence[StepRecord]]) -> list[float]:
    return step_times([[step.elapsed_ns / _NS for step in ranks] for ranks in steps])


def _cpu(steps: Sequence[Sequence[StepRecord]]) -> list[float]:
    return [sum(step.cpu_ns for step in ranks) / _NS for ranks in steps]


def _figures(path: PathName, steps: Sequence[Sequence[StepRecord]], batches: Sequence[BatchRecord]) -> PathFigures:
    wall = _wall(steps)
    times = spread(wall)
    fed = [[batch for batch in batches if batch.round == number] for number in range(len(steps))]
    slots, tokens = (
        [sum(getattr(batch, what)[path] for batch in of_round) for of_round in fed] for what in ("slots", "tokens")
    )
    pairs = [sum(len(batch.groups) for batch in of_round) for of_round in fed]

    def rate(counts: Sequence[int]) -> float:
        return spread([count / time for count, time in zip(counts, wall, strict=True)]).median

    return PathFigures(
        path=path,
        num_steps=len(steps),
        median_s=times.median,
        lower_quartile_s=times.lower_quartile,
        upper_quartile_s=times.upper_quartile,
        median_cpu_s=spread(_cpu(steps)).median,
        peak_bytes=_summed(steps, lambda step: step.peak_bytes),
        step_bytes=_summed(steps, _beyond_what_is_held),
        reserved_bytes=_summed(steps, lambda step: step.reserved_bytes),
        host_peak_bytes=_summed(steps, lambda step: step.host_peak_bytes),
        slots_per_s=rate(slots),
        tokens_per_s=rate(tokens),
        pairs_per_s=rate(pairs),
        utilisation=sum(tokens) / sum(slots),
        steps_compiled=sum(any(step.graphs_compiled for step in ranks) for ranks in steps),
    )


def _beyond_what_is_held(step: StepRecord) -> int | None:
    return None if step.peak_bytes is None or step.held_bytes is None else step.peak_bytes - step.held_bytes


def _summed(steps: Sequence[Sequence[StepRecord]], read: Callable[[StepRecord], int | None]) -> int | None:
    """Rank-summed, or None where a rank could not say."""
    values = [[read(step) for step in ranks] for ranks in steps]
    known = [[value for value in ranks if value is not None] for ranks in values]
    return rank_summed_peak(known) if known == values else None


def _over(above: int | None, below: int | None) -> float | None:
    return above / below if above and below else None


def _interval(above: Sequence[float], below: Sequence[float], seed: int) -> IntervalRecord:
    ratio = ratio_of_medians(above, below, seed=seed)
    return IntervalRecord(value=ratio.value, low=ratio.low, high=ratio.high)


def _ratio(
    above: PathFigures,
    below: PathFigures,
    steps: StepsByPath,
    batches: Sequence[BatchRecord],
    seed: int,
) -> RatioRecord:
    cpu_above, cpu_below = _cpu(steps[above.path]), _cpu(steps[below.path])
    flops = [[batch.forward_flops[each.path] for batch in batches if batch.forward_flops] for each in (above, below)]
    return RatioRecord(
        path=above.path,
        over=below.path,
        time=_interval(_wall(steps[above.path]), _wall(steps[below.path]), seed),
        cpu_time=_interval(cpu_above, cpu_below, seed) if min(*cpu_above, *cpu_below) > 0 else None,
        memory=_over(above.peak_bytes, below.peak_bytes),
        step_memory=_over(above.step_bytes, below.step_bytes),
        flops=sum(flops[0]) / sum(flops[1]) if flops[0] else None,
    )

"""What a workload says its steps amount to, computed again from the steps: a record that gives itself away is refused.

Without numpy, and by other means than the measurement's. An interval comes from a seeded resampling, which is not done
again here; it is held within what no resample of its rounds can leave.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from statistics import median, quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.cost_record import (
        BatchRecord,
        CostRecord,
        IntervalRecord,
        PathFigures,
        RatioRecord,
        StepRecord,
        WorkloadRecord,
    )

_NS = 1e9
_ROUNDING = 1e-9
_SINGLE = 1e-6
"""Some eight roundings to float32, in which a step takes its loss from its margins whatever the dtype of the model."""
_UNSHARED = ("padded", "unpadded", "padding-free")
_PADDED = ("padded", "dense")
Rounds = Mapping[int, Sequence["StepRecord"]]
"""The measured steps of a path, of all ranks, by round."""


def contradictions(workload: WorkloadRecord) -> Iterator[str]:
    """Where figures are not those of the steps, or ratios not those of the figures."""
    yield from _gaps(workload)
    for figures in workload.figures:
        rounds = _rounds(workload, figures.path)
        if len(rounds) != figures.num_steps or figures.num_steps != workload.num_rounds:
            yield (
                f"{figures.num_steps} steps of {figures.path}, but {len(rounds)} of {workload.num_rounds} rounds are "
                "recorded"
            )
            return
        for what, value, found in _of_a_path(figures, rounds, workload.batches):
            if not _same(value, found):
                yield f"{what} of {figures.path} is {value}, its steps give {found}"
    for ratio in workload.ratios:
        above, below = workload.figures_of(ratio.path), workload.figures_of(ratio.over)
        if above is None or below is None:
            yield f"a ratio of {ratio.path} over {ratio.over}, of which one has no figures"
            return
        for what, value, found in _of_a_ratio(ratio, above, below, workload.batches):
            if not _same(value, found):
                yield f"{what} of {ratio.path} over {ratio.over} is {value}, the figures give {found}"
        for what, interval, read in (("time", ratio.time, _wall), ("processor time", ratio.cpu_time, _cpu)):
            if interval is not None:
                pair = [_by_round(_rounds(workload, path), read) for path in (ratio.path, ratio.over)]
                yield from _out_of_reach(f"{what} of {ratio.path} over {ratio.over}", interval, *pair)
    yield from _missing_ratios(workload)
    yield from _odd_held_out(workload)
    yield from _odd_counts(workload)


def strangers(record: CostRecord) -> Iterator[str]:
    """What is not of this run: a workload that is there twice, evidence of another dtype, version or sharding."""
    names = Counter(workload.name for workload in record.workloads)
    yield from (f"workload {name} is there {count} times" for name, count in names.items() if count > 1)
    if bool(record.sharding) != (record.num_ranks > 1):
        yield f"{record.num_ranks} ranks, and the sharding is {record.sharding or 'none'}"
    for path in record.paths:
        if (cited := path.parity) is None:
            continue
        for what, there, here in (
            ("dtype", cited.dtype, record.dtype),
            ("version", cited.tool_version, record.tool_version),
            ("sharding", _sharding(cited.world_size), _sharding(record.num_ranks)),
        ):
            if there != here:
                yield f"path {path.name}: the {what} of what it cites is {there}, of this run {here}"


def losses_of_other_margins(record: CostRecord) -> Iterator[str]:
    """Where a held-out loss is not that of the margins beside it.

    Margins are rewards, of which beta is a factor, so that the sigmoid loss is ln(1 + exp(-margin)), the mean over
    pairs. Of other objectives margins alone do not say it.
    """
    objective = record.objective
    if objective.get("name") != "sigmoid" or objective.get("label_smoothing") or objective.get("nll_weight"):
        return
    for workload in record.workloads:
        for held in workload.held_out:
            found = math.fsum(map(_sigmoid_loss, held.margins)) / len(held.margins)
            if not math.isclose(held.loss, found, rel_tol=_SINGLE, abs_tol=_SINGLE):
                yield (
                    f"{workload.name}: the loss of {held.path} held out at the {held.when} is {held.loss}, its margins "
                    f"give {found}"
                )


def _sigmoid_loss(margin: float) -> float:
    return max(-margin, 0.0) + math.log1p(math.exp(-abs(margin)))


def _sharding(num_ranks: int) -> str:
    return "over ranks" if num_ranks > 1 else "none"


def _gaps(workload: WorkloadRecord) -> Iterator[str]:
    """A step that is there twice; a round that lacks the step of a rank, or the batch."""
    counts = Counter((s.session, s.phase, s.round, s.path, s.rank) for s in workload.steps)
    if twice := next((key for key, count in counts.items() if count > 1), None):
        yield f"step {twice} is recorded twice"
    measured = Counter((s.round, s.path, s.rank) for s in workload.steps if s.phase == "measured")
    ranks = {rank for _, _, rank in measured}
    for key in product({number for number, _, _ in measured}, {path for _, path, _ in measured}, ranks):
        if measured[key] != 1:
            yield f"round {key[0]} has {measured[key]} measured steps of {key[1]} on rank {key[2]}: expected one"
            return
    batches = Counter((batch.round, batch.rank) for batch in workload.batches)
    wanted = Counter(product(range(workload.num_rounds), sorted(ranks)))
    if measured and batches != wanted:
        odd = next(key for key in batches | wanted if batches[key] != wanted[key])
        yield f"round {odd[0]} has {batches[odd]} batches of rank {odd[1]}: expected {wanted[odd]}"


def _missing_ratios(workload: WorkloadRecord) -> Iterator[str]:
    """Every path stands beside every other one: none is left out that a gain would look small beside."""
    found = {frozenset((ratio.path, ratio.over)) for ratio in workload.ratios}
    for pair in combinations((figures.path for figures in workload.figures), 2):
        if frozenset(pair) not in found:
            yield f"no ratio of {' and '.join(pair)}, which were both measured"
            return


def _odd_held_out(workload: WorkloadRecord) -> Iterator[str]:
    """Whenever pairs are held out, every path is put to the same ones, once."""
    held_out = workload.held_out
    found = Counter((held.when, held.path) for held in held_out)
    for key in product({held.when for held in held_out}, (figures.path for figures in workload.figures)):
        if found[key] != 1:
            yield f"{found[key]} results of {key[1]} held out at the {key[0]}: expected one"
            return
    if len(numbers := {len(held.margins) for held in held_out}) > 1:
        yield f"held out are {' and '.join(map(str, sorted(numbers)))} pairs: paths are put to the same ones"


def _odd_counts(workload: WorkloadRecord) -> Iterator[str]:
    """Slots and tokens of a batch are those that its lengths have in each path's layout."""
    for batch in workload.batches:
        sequences = [group.prompt + response for group in batch.groups for response in group.responses]
        packed = [group.prompt + sum(group.responses) for group in batch.groups]
        for path in sorted(batch.slots.keys() | batch.tokens.keys()):
            rows = sequences if path in _UNSHARED else packed
            slots = len(rows) * max(rows, default=0) if path in _PADDED else sum(rows)
            found, wanted = (batch.slots.get(path), batch.tokens.get(path)), (slots, sum(rows))
            if found != wanted:
                yield (
                    f"round {batch.round} has {found[0]} slots and {found[1]} tokens of {path} on rank {batch.rank}: "
                    f"lengths give {wanted[0]} and {wanted[1]}"
                )
                return


def _rounds(workload: WorkloadRecord, path: str) -> dict[int, list[StepRecord]]:
    rounds: dict[int, list[StepRecord]] = {}
    for step in workload.steps:
        if step.phase == "measured" and step.path == path:
            rounds.setdefault(step.round, []).append(step)
    return rounds


def _wall(ranks: Sequence[StepRecord]) -> float:
    """A step takes as long as its slowest rank."""
    return max(step.elapsed_ns for step in ranks) / _NS


def _cpu(ranks: Sequence[StepRecord]) -> float:
    return sum(step.cpu_ns for step in ranks) / _NS


def _by_round(rounds: Rounds, read: Callable[[Sequence[StepRecord]], float]) -> dict[int, float]:
    return {number: read(ranks) for number, ranks in rounds.items()}


def _of_a_path(
    figures: PathFigures, rounds: Rounds, batches: Sequence[BatchRecord]
) -> Iterator[tuple[str, float | None, float | None]]:
    """Each figure, as recorded and as its steps have it."""
    path, wall = figures.path, _by_round(rounds, _wall)
    lower, middle, upper = _quartiles(list(wall.values()))
    yield "median", figures.median_s, middle
    yield "lower quartile", figures.lower_quartile_s, lower
    yield "upper quartile", figures.upper_quartile_s, upper
    yield "median of processor time", figures.median_cpu_s, median(map(_cpu, rounds.values()))
    yield "peak", figures.peak_bytes, _largest_sum(rounds, lambda step: step.peak_bytes)
    yield "peak of the step alone", figures.step_bytes, _largest_sum(rounds, _beyond_what_is_held)
    yield "peak of reserved bytes", figures.reserved_bytes, _largest_sum(rounds, lambda step: step.reserved_bytes)
    yield "peak of host memory", figures.host_peak_bytes, _largest_sum(rounds, lambda step: step.host_peak_bytes)
    compiled = sum(any(step.graphs_compiled for step in ranks) for ranks in rounds.values())
    yield "number of steps that compiled", figures.steps_compiled, compiled
    slots, tokens, pairs = dict.fromkeys(wall, 0), dict.fromkeys(wall, 0), dict.fromkeys(wall, 0)
    for batch in batches:
        if batch.round in wall and path in batch.slots and path in batch.tokens:
            slots[batch.round] += batch.slots[path]
            tokens[batch.round] += batch.tokens[path]
            pairs[batch.round] += len(batch.groups)
    for what, rate, counts in (
        ("number of slots per second", figures.slots_per_s, slots),
        ("number of tokens per second", figures.tokens_per_s, tokens),
        ("number of pairs per second", figures.pairs_per_s, pairs),
    ):
        yield what, rate, median(counts[number] / wall[number] for number in wall)
    yield "utilisation", figures.utilisation, _over(sum(tokens.values()), sum(slots.values()))


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Linear interpolation between order statistics."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    lower, middle, upper = quantiles(values, n=4, method="inclusive")
    return lower, middle, upper


def _beyond_what_is_held(step: StepRecord) -> int | None:
    return None if step.peak_bytes is None or step.held_bytes is None else step.peak_bytes - step.held_bytes


def _largest_sum(rounds: Rounds, read: Callable[[StepRecord], int | None]) -> int | None:
    """Rank-summed: the sum over ranks in each step, the largest over steps; None where a rank could not say."""
    values = [[read(step) for step in ranks] for ranks in rounds.values()]
    known = [[value for value in ranks if value is not None] for ranks in values]
    return max(map(sum, known)) if known == values else None


def _of_a_ratio(
    ratio: RatioRecord, above: PathFigures, below: PathFigures, batches: Sequence[BatchRecord]
) -> Iterator[tuple[str, float | None, float | None]]:
    """Each ratio, as recorded and as the figures have it."""
    yield "time", ratio.time.value, above.median_s / below.median_s
    if ratio.cpu_time is not None:
        yield "processor time", ratio.cpu_time.value, _over(above.median_cpu_s, below.median_cpu_s)
    yield "memory", ratio.memory, _over(above.peak_bytes, below.peak_bytes)
    yield "memory of the step alone", ratio.step_memory, _over(above.step_bytes, below.step_bytes)
    flops = [batch.forward_flops for batch in batches if batch.forward_flops]
    if all(ratio.path in each and ratio.over in each for each in flops):
        sums = [sum(each[path] for each in flops) for path in (ratio.path, ratio.over)]
        yield "FLOPs", ratio.flops, _over(sums[0], sums[1])


def _out_of_reach(
    what: str, interval: IntervalRecord, above: Mapping[int, float], below: Mapping[int, float]
) -> Iterator[str]:
    """An interval that no resampling of the rounds has.

    With a_i <= r b_i in every round the median of any drawn a is at most r times that of the b drawn with them: a ratio
    of medians lies between the least and the largest ratio of a round.
    """
    if any(value <= 0 for value in below.values()):
        return
    ratios = [above[number] / below[number] for number in above]
    least, most = min(ratios) * (1 - _ROUNDING), max(ratios) * (1 + _ROUNDING)
    if not least <= interval.low <= interval.high <= most:
        yield (
            f"{what} has the interval {interval.low} to {interval.high}, rounds have ratios of {min(ratios)} to "
            f"{max(ratios)}"
        )


def _over(above: float | None, below: float | None) -> float | None:
    """A ratio; None where either is not known or is 0."""
    return above / below if above and below else None


def _same(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return math.isclose(value, other, rel_tol=_ROUNDING)

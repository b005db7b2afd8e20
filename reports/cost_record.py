"""The record of measured cost: every step of every rank as it was read, and what the steps amount to.

Like the record of the gate it holds plain values, refuses unknown fields, and refuses to contradict itself: a median
or an interval that its steps do not have, a ratio of other medians, a path that was measured and is NOT_APPLICABLE.
"""

from __future__ import annotations

import math
from itertools import chain
from statistics import median
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, FiniteFloat, model_validator

from reports.cost_consistency import contradictions, losses_of_other_margins, strangers
from reports.record_names import DtypeName
from reports.record_setting import Environment, ModelRecord
from reports.values import Count, RecordPart, Settings, Text

COST_VERSION: Literal[1] = 1

PathName = Literal["padded", "unpadded", "padding-free", "dense", "sparse", "split"]
PATH_NAMES: tuple[PathName, ...] = get_args(PathName)
MemoryMeasure = Literal["cuda-allocator", "live-bytes", "resident"]
Positive = Annotated[FiniteFloat, Field(gt=0)]


class CitedParityRecord(RecordPart):
    """The parity result that a measured path rests on: same subject, versions and config."""

    record_sha256: str
    created_utc: Text
    tool_version: Text
    subject: Text
    dtype: DtypeName
    world_size: Annotated[int, Field(gt=0)] = 1
    """Ranks over which FSDP2 had sharded what was judged; 1 for one process."""
    num_compared: Annotated[int, Field(gt=0)]
    cases: Annotated[int, Field(gt=0)]
    """Cases that passed; of a sharded model scenarios."""


class CostPathRecord(RecordPart):
    """One path, and whether it could be measured here."""

    name: PathName
    role: Literal["unpacked", "packed"]
    how: Text
    """Rows and attention, in words."""
    subject: Text
    state: Literal["measured", "NOT_APPLICABLE"]
    reason: Text
    """Empty where it was measured."""
    parity: CitedParityRecord | None
    """None for "unverified"."""

    @model_validator(mode="after")
    def _absence_is_explained(self) -> Self:
        if (self.state == "measured") == bool(self.reason):
            raise ValueError(f"path {self.name} is {self.state} with the reason {self.reason!r}")
        if self.parity is not None and (self.role != "packed" or self.parity.subject != self.subject):
            raise ValueError(
                f"path {self.name} is {self.role}, of subject {self.subject}, and cites what was judged of "
                f"{self.parity.subject}"
            )
        return self


class StepRecord(RecordPart):
    """One step of one path on one rank, as it was read."""

    phase: Literal["warm-up", "measured"]
    session: Count
    """0 in the process that began the run, 1 after it was resumed once, ..."""
    round: Count
    """Paths of a round run the same batch."""
    place: Count
    """Place in its round, from 0; the order turns round from one round to the next."""
    path: PathName
    rank: Count
    elapsed_ns: Annotated[int, Field(gt=0)]
    cpu_ns: Count
    """Processor time of all threads of the rank."""
    graphs_compiled: Count
    """By torch.compile within the step; such a step is no ordinary one."""
    loss: FiniteFloat
    held_bytes: Count | None
    """Taken when the step began: weights, adapters, optimizer. None where nothing counts it."""
    peak_bytes: Count | None
    """The most within the step, what is held included. None in a warm-up step of a run that measures live bytes."""
    reserved_bytes: Count | None
    """The most that the allocator took from the device; None without one."""
    host_peak_bytes: Count | None
    """Peak of resident memory of the process within the step; None where the system does not say."""

    @model_validator(mode="after")
    def _peak_holds_what_is_held(self) -> Self:
        if self.peak_bytes is not None and self.peak_bytes < (self.held_bytes or 0):
            raise ValueError(f"{self.path}, round {self.round}: peak {self.peak_bytes} below {self.held_bytes} held")
        return self


class GroupLengthsRecord(RecordPart):
    """Lengths of a pair, in tokens."""

    prompt: Annotated[int, Field(gt=0)]
    responses: list[Annotated[int, Field(gt=0)]]


class BatchRecord(RecordPart):
    """What a rank's batch of a round holds, and what a pass of each path over it is fed."""

    round: Count
    rank: Count
    groups: list[GroupLengthsRecord]
    slots: dict[PathName, Count]
    """Positions that go through the model, padding included."""
    tokens: dict[PathName, Count]
    """Those of them that are no padding."""
    forward_flops: dict[PathName, Count] | None
    """Of one forward pass, padding and masked squares included; None where no formula counts the model's."""


class HeldOutRecord(RecordPart):
    """Held-out pairs under the adapters that a path has trained, computed by that path."""

    when: Literal["start", "end"]
    path: PathName
    loss: FiniteFloat
    """Mean over pairs."""
    margins: list[FiniteFloat]
    """Chosen minus rejected reward of each pair."""

    @property
    def mean_margin(self) -> float:
        """Mean over pairs, as trainers report it."""
        return math.fsum(self.margins) / len(self.margins)

    @property
    def ties(self) -> int:
        """Pairs whose margin is exactly 0."""
        return sum(margin == 0 for margin in self.margins)

    @property
    def accuracy(self) -> float:
        """Share of pairs with a margin above 0, a tie as one half."""
        return (sum(margin > 0 for margin in self.margins) + self.ties / 2) / len(self.margins)

    def flips(self, other: HeldOutRecord) -> int:
        """Pairs that another path decides otherwise, a tie against a decision included."""
        pairs = zip(self.margins, other.margins, strict=True)
        return sum(_sign(one) != _sign(two) for one, two in pairs)

    @model_validator(mode="after")
    def _has_pairs(self) -> Self:
        if not self.margins:
            raise ValueError(f"held out for {self.path}: no pair")
        return self


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


class PathFigures(RecordPart):
    """What the measured steps of a path amount to."""

    path: PathName
    num_steps: Annotated[int, Field(gt=0)]
    median_s: Positive
    """Of step times; a step takes as long as its slowest rank."""
    lower_quartile_s: Positive
    upper_quartile_s: Positive
    median_cpu_s: Annotated[FiniteFloat, Field(ge=0)]
    """Of processor time, summed over ranks."""
    peak_bytes: Count | None
    """Rank-summed: for each step the sum over ranks of each one's peak; the largest over steps. None where nothing
    counts it."""
    step_bytes: Count | None
    """The same of what a step takes beyond what is held."""
    reserved_bytes: Count | None
    host_peak_bytes: Count | None
    slots_per_s: Positive
    """Median over steps, all ranks together, one pass counted; as below."""
    tokens_per_s: Positive
    pairs_per_s: Positive
    utilisation: Annotated[float, Field(gt=0, le=1)]
    """Tokens / slots, over all steps."""
    steps_compiled: Count
    """Steps within which something was compiled; they are among the measured ones, and count."""


class IntervalRecord(RecordPart):
    """A ratio with an interval of 95 %."""

    value: Positive
    low: Positive
    high: Positive


class RatioRecord(RecordPart):
    """One path over another; below 1 the first is cheaper."""

    path: PathName
    over: PathName
    time: IntervalRecord
    cpu_time: IntervalRecord | None
    """Of processor time; None where a path used none worth counting."""
    memory: Positive | None
    """Of rank-summed peaks."""
    step_memory: Positive | None
    """Of what steps take beyond what is held."""
    flops: Positive | None
    """Of what a forward pass computes; the time that a machine would need that spent all of it on these."""


class WorkloadRecord(RecordPart):
    """One part of a run: lengths, a seed, steps, and what they amount to."""

    name: Text
    seed: Count
    source: Text
    """Where the lengths come from, in words."""
    enters_comparison: bool
    num_rounds: Annotated[int, Field(gt=0)]
    batches: list[BatchRecord]
    steps: list[StepRecord]
    held_out: list[HeldOutRecord]
    figures: list[PathFigures]
    ratios: list[RatioRecord]
    best_unpacked_time: PathName | None
    """The unpacked path with the least median; None where none was measured."""
    best_unpacked_memory: PathName | None

    def figures_of(self, path: str) -> PathFigures | None:
        """What a path's steps amount to; None where it was not measured."""
        return next((figures for figures in self.figures if figures.path == path), None)

    def ratio(self, path: str, over: str | None) -> RatioRecord | None:
        """One path over another; None where either was not measured."""
        return next((ratio for ratio in self.ratios if (ratio.path, ratio.over) == (path, over)), None)

    def held_out_of(self, path: str, when: str) -> HeldOutRecord | None:
        """What was held out, under one path."""
        return next((held for held in self.held_out if (held.path, held.when) == (path, when)), None)

    @property
    def mean_length(self) -> float:
        """Tokens of a prompt and one response, the mean over all sequences of all batches."""
        lengths = [group.prompt + r for batch in self.batches for group in batch.groups for r in group.responses]
        return sum(lengths) / len(lengths)

    @model_validator(mode="after")
    def _figures_and_ratios_are_those_of_the_steps(self) -> Self:
        if problem := next(contradictions(self), None):
            raise ValueError(f"{self.name}: {problem}")
        return self


class RecordedRatioRecord(RecordPart):
    """A ratio that was recorded elsewhere beside the one measured here."""

    check: Text
    path: PathName
    over: Text
    """A path's name, or "vanilla" for the unpacked path of the recorded run."""
    recorded_time: Positive | None
    recorded_memory: Positive | None
    over_here: PathName
    measured_time: Positive | None
    """Median over the workloads that enter the comparison; None where nothing of the kind was measured."""
    measured_memory: Positive | None
    why_not: Text
    """Empty where it was measured."""

    @model_validator(mode="after")
    def _absence_is_explained(self) -> Self:
        if (self.measured_time is None) != bool(self.why_not):
            raise ValueError(f"{self.check}, {self.path} over {self.over}: measured and unexplained, or the reverse")
        return self


class ConditionRecord(RecordPart):
    """In what the recorded run and this one differ."""

    what: Text
    recorded: Text
    here: Text


def _check_best(workload: WorkloadRecord, unpacked: set[PathName]) -> None:
    """Refuse a headline over an unpacked path that is not the best one: a gain over a slow baseline is no gain."""
    times = {each.path: each.median_s for each in workload.figures if each.path in unpacked}
    peaks = {
        each.path: each.peak_bytes for each in workload.figures if each.path in times and each.peak_bytes is not None
    }
    for what, best, values in (
        ("time", workload.best_unpacked_time, times),
        ("memory", workload.best_unpacked_memory, peaks),
    ):
        if (best is None) != (not values) or (best is not None and values.get(best) != min(values.values())):
            raise ValueError(f"{workload.name}: the best unpacked {what} is that of {best}, the figures are {values}")


class CostRecord(RecordPart):
    """One run of ``packparity cost``."""

    kind: Literal["cost"] = "cost"
    schema_version: Literal[1] = COST_VERSION
    tool_version: Text
    created_utc: Text
    command: list[Text]
    environment: Environment
    machine: Settings
    """Cores, memory, allocator settings, other load: what the numbers depend on beside versions."""
    model: ModelRecord
    dtype: DtypeName
    objective: Settings
    optimizer: Settings
    preset: Text
    """"" where none was asked for."""
    scale: Literal["full", "tiny"]
    seeds: dict[str, int]
    num_ranks: Annotated[int, Field(gt=0)]
    pairs_per_rank: Annotated[int, Field(gt=0)]
    sharding: Settings
    memory_measure: MemoryMeasure
    memory_meaning: Text
    """What the measure counts and what it is worth."""
    paths: list[CostPathRecord]
    workloads: list[WorkloadRecord]
    recorded: list[RecordedRatioRecord]
    conditions: list[ConditionRecord]
    data: Settings
    """What was drawn from a preference file; empty where lengths are fixed."""
    procedure: list[Text]
    """How it was measured: synchronisation points, when peaks were reset, order, warm-up, statistics."""
    not_measured: list[Text]
    notes: list[Text]
    total_s: Positive

    @property
    def measured_paths(self) -> list[CostPathRecord]:
        """Paths that were measured."""
        return [path for path in self.paths if path.state == "measured"]

    @model_validator(mode="after")
    def _paths_are_those_of_the_workloads(self) -> Self:
        names = {path.name for path in self.measured_paths}
        if not names or not self.workloads:
            raise ValueError("no path or no workload was measured")
        unpacked = {path.name for path in self.paths if path.role == "unpacked"}
        for workload in self.workloads:
            _check_best(workload, unpacked)
            if {figures.path for figures in workload.figures} != names:
                raise ValueError(f"{workload.name} has figures of other paths than those that were measured")
            if stray := {step.path for step in workload.steps} - names:
                raise ValueError(f"{workload.name} has steps of {', '.join(sorted(stray))}, which was not measured")
            if (ranks := {step.rank for step in workload.steps}) != set(range(self.num_ranks)):
                raise ValueError(f"{workload.name} has steps of ranks {sorted(ranks)}; there are {self.num_ranks}")
            if any(len(batch.groups) != self.pairs_per_rank for batch in workload.batches):
                raise ValueError(f"{workload.name} has batches of other than {self.pairs_per_rank} pairs")
        return self

    @model_validator(mode="after")
    def _parts_are_of_this_run(self) -> Self:
        if problem := next(chain(strangers(self), losses_of_other_margins(self)), None):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _what_stands_beside_recorded_ratios_was_measured(self) -> Self:
        entering = [workload for workload in self.workloads if workload.enters_comparison]
        for row in self.recorded:
            if row.measured_time is None:
                continue
            ratios = [ratio for workload in entering if (ratio := workload.ratio(row.path, row.over_here))]
            memories = [ratio.memory for ratio in ratios if ratio.memory is not None]
            for what, value, found in (
                ("time", row.measured_time, [ratio.time.value for ratio in ratios]),
                ("memory", row.measured_memory, memories),
            ):
                if (value is None) != (not found) or not math.isclose(value or 0, median(found or [0]), rel_tol=1e-9):
                    raise ValueError(
                        f"{row.check}: {row.path} over {row.over_here} has a {what} of {value}: not measured"
                    )
        return self

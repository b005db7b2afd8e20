"""The record of a run of sharded parity: what each rank had, every judgement, and the faults that were planted."""

from __future__ import annotations

import math
from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from reports.record_names import VerdictName
from reports.record_results import JudgementRecord
from reports.record_setting import CaseRecord, DataRecord, Environment, ModelRecord, SubjectRecord
from reports.sharded_consistency import inconsistencies
from reports.values import Count, Measured, RecordPart, Settings, Text

SHARDED_VERSION: Literal[1] = 1

PrecisionName = Literal["float64", "float32", "bfloat16", "mixed-bfloat16"]
Against = Literal["single process", "oracle", "unpacked"]
AGAINST: tuple[Against, ...] = get_args(Against)


class PrecisionRecord(RecordPart):
    """What a sharded model computed in; names of torch dtypes."""

    name: PrecisionName
    weights: Text
    computes: Text
    reduces: Text


class ScenarioRecord(RecordPart):
    """A case, and how ranks ran it."""

    name: Text
    case: Text
    micro_size: Count
    """Most groups of a micro-batch."""
    reference: Literal["adapters-off", "frozen-adapter", "separate-model", "cached"] | None
    """The frozen policy; None of a reward model, which has none."""


class HeldRecord(RecordPart):
    """A judgement, and what the sharded step was held against."""

    against: Against
    judgement: JudgementRecord


class ParityRecord(RecordPart):
    """One subject in one scenario and one precision."""

    scenario: Text
    subject: Text
    precision: PrecisionName
    verdict: VerdictName
    reasons: list[Text]
    micro_size: Count
    """Most groups of a micro-batch."""
    groups_of_ranks: list[Count]
    dummies_of_ranks: list[Count]
    """Calls of each rank that added nothing."""
    num_compared: Count
    worst_ratio: Measured | None
    """Largest measured / budget of its judgements; None where nothing was compared."""
    held: list[HeldRecord]

    @model_validator(mode="after")
    def _sums_are_of_judgements(self) -> Self:
        where = f"{self.subject} in {self.scenario}, {self.precision}"
        compared = sum(each.judgement.num_compared for each in self.held)
        if self.num_compared != compared:
            raise ValueError(f"{where}: {self.num_compared} values compared, but its judgements say {compared}")
        worst = max((r for each in self.held if (r := _ratio(each.judgement)) is not None), default=None)
        if self.worst_ratio != worst:
            raise ValueError(f"{where}: the worst ratio is {self.worst_ratio}, that of its judgements {worst}")
        return self

    @model_validator(mode="after")
    def _verdict_rests_on_judgements(self) -> Self:
        where = f"{self.subject} in {self.scenario}, {self.precision}"
        if self.verdict == "PASS":
            if not self.num_compared or any(each.judgement.verdict != "PASS" for each in self.held):
                raise ValueError(f"{where} is PASS, but nothing was compared, or a judgement is not PASS")
            if {each.against for each in self.held} != set(AGAINST):
                raise ValueError(f"{where} is PASS, but was not held against one process, oracle and unpacked path")
        elif not self.reasons:
            raise ValueError(f"{where} is {self.verdict} without a reason")
        return self


def _ratio(judgement: JudgementRecord) -> float | None:
    """Measured / budget: infinite where that is not a number, so that NaN never reads as small; None without one."""
    if judgement.measured is None or judgement.budget is None:
        return None
    if not (math.isfinite(judgement.measured) and math.isfinite(judgement.budget)):
        return math.inf
    if judgement.budget > 0:
        return judgement.measured / judgement.budget
    return math.inf if judgement.measured else 0.0


class CheckRecord(RecordPart):
    """One check in one precision."""

    check: Text
    """Its name in docs/sharded.md."""
    precision: PrecisionName
    subject: Text
    verdict: VerdictName
    num_compared: Count
    ratio: Measured
    """The worst difference over what may differ; infinite where nothing may."""
    worst: Text
    """What is worst, or why the check abstained; empty on PASS."""

    @model_validator(mode="after")
    def _pass_is_within(self) -> Self:
        if self.verdict != "PASS" and not self.worst:
            raise ValueError(f"{self.check} is {self.verdict} without a reason")
        if self.verdict == "PASS" and not (self.num_compared and self.ratio <= 1):
            raise ValueError(f"{self.check} is PASS with {self.num_compared} values and a ratio of {self.ratio}")
        return self


class PlantedFaultRecord(RecordPart):
    """A fault that was planted in this very run, and which checks caught it."""

    fault: Text
    """Its name in docs/faults.md."""
    what: Text
    precision: PrecisionName
    caught_by: list[Text]
    """Names of checks; empty if it survived."""
    checks: list[CheckRecord]

    @model_validator(mode="after")
    def _caught_by_what_failed(self) -> Self:
        if self.caught_by != _failed(self.checks):
            raise ValueError(f"{self.fault} is caught by {self.caught_by}, but {_failed(self.checks)} failed")
        return self


class HarmlessRecord(RecordPart):
    """A harmless change, and whether some check took it for a fault."""

    change: Text
    what: Text
    precision: PrecisionName
    flagged_by: list[Text]
    checks: list[CheckRecord]

    @model_validator(mode="after")
    def _flagged_by_what_failed(self) -> Self:
        if self.flagged_by != _failed(self.checks):
            raise ValueError(f"{self.change} is flagged by {self.flagged_by}, but {_failed(self.checks)} failed")
        return self


def _failed(checks: list[CheckRecord]) -> list[str]:
    return [check.check for check in checks if check.verdict == "FAIL"]


class ShardedRecord(RecordPart):
    """Everything that a run of ``packparity sharded`` measured."""

    kind: Literal["sharded"] = "sharded"
    schema_version: Literal[1]
    tool_version: Text
    created_utc: Text
    command: list[Text]
    verdict: VerdictName
    reasons: list[Text]
    world_size: Count
    backend: Text
    """Of torch.distributed."""
    started_by: Literal["local ranks", "environment"]
    """Ranks on this machine that the program started itself, or whoever set RANK and WORLD_SIZE, as torchrun."""
    environment: Environment
    """Of rank 0; all ranks have the same versions."""
    model: ModelRecord
    precisions: list[PrecisionRecord]
    objective: Settings = Field(default_factory=dict)
    """Of the cases that compare responses, by its settings, with the frozen policy of the run; cases that are there for
    one objective have their own. Empty in records that do not say: the sigmoid loss with its defaults."""
    cases: list[CaseRecord]
    scenarios: list[ScenarioRecord]
    data: DataRecord | None = None
    """Where real pairs came from; None where cases were made up."""
    subjects: list[SubjectRecord]
    parity: list[ParityRecord]
    checks: list[CheckRecord]
    planted: list[PlantedFaultRecord]
    harmless: list[HarmlessRecord]
    policy: Settings
    seeds: dict[str, int]
    notes: list[Text]
    total_s: Measured

    @model_validator(mode="after")
    def _verdict_rests_on_parts(self) -> Self:
        verdicts = {result.verdict for result in self.parity} | {check.verdict for check in self.checks}
        if self.verdict != "PASS":
            if not self.reasons:
                raise ValueError(f"the run is {self.verdict} without a reason")
            return self
        if "PASS" not in verdicts or verdicts & {"FAIL", "ERROR", "INCONCLUSIVE"}:
            raise ValueError(f"the run is PASS, but its parts are {', '.join(sorted(verdicts)) or 'none'}")
        if self.world_size < 2:
            raise ValueError(f"the run is PASS with a world size of {self.world_size}: nothing was sharded")
        if not self.planted or not all(each.caught_by for each in self.planted):
            raise ValueError("the run is PASS, but no fault was planted, or one was not caught")
        if any(each.flagged_by for each in self.harmless):
            raise ValueError("the run is PASS, but a harmless change was taken for a fault")
        return self

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if problem := next(inconsistencies(self), None):
            raise ValueError(problem)
        return self

"""The record of one run of the fault catalogue: what caught each planted fault, in plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self, get_args

from pydantic import model_validator

from reports.record_names import DtypeName, QuantityName, VerdictName
from reports.record_setting import CaseRecord, Environment, ModelRecord, TimingRecord
from reports.values import Count, Measured, RecordPart, Settings

KILL_MATRIX_VERSION: Literal[2] = 2
WANTED_MARGIN: dict[DtypeName, float] = {"float64": 10.0, "float32": 10.0, "bfloat16": 2.0, "autocast-bfloat16": 2.0}
"""A fault whose largest difference is less than this many budgets is shown as weakly caught."""

OutcomeName = Literal["killed", "survived", "hidden", "quiet", "flagged", "error", "inconclusive"]
ExactCheckName = Literal[
    "branch-isolation",
    "group-isolation",
    "causality",
    "reach",
    "row-map",
    "absolute-positions",
    "permutation",
    "repeat",
    "normalisation",
    "own-objective",
    "optimizer-steps",
    "gradient-checkpointing",
    "dropout",
    "no-cross-attention",
    "no-boundary-target",
    "no-padding-in-loss",
    "positions-as-unpacked",
    "same-number-of-targets",
]
CheckName = QuantityName | Literal["structure", "packed-ran"] | ExactCheckName

PARITY: tuple[QuantityName, ...] = get_args(QuantityName)
"""Checks of which one case has several; any other is run on cases of its own."""

AS_WANTED: dict[str, tuple[OutcomeName, ...]] = {"fault": ("killed", "hidden"), "equivalent": ("quiet",)}


class CatchRecord(RecordPart):
    """One check against one mutation."""

    check: CheckName
    distance: Literal["oracle", "differential", ""]
    killed: bool
    margin: Measured
    """Largest measured / budget; for "packed-ran" slots fed / slots of unpacked rows."""
    case: str
    where: str


class MutationRecord(RecordPart):
    """One planted fault or equivalent mutant in one dtype."""

    name: str
    kind: Literal["fault", "equivalent"]
    stage: str
    what: str
    imitates: list[str]
    """Entries of docs/faults.md."""
    signature: str
    """Of a fault: which values are off. Of an equivalent mutant: why none is."""
    bites_where: str
    invisible_where: str
    must_kill: list[str]
    must_kill_in: list[DtypeName]
    """Dtypes in which a fault must be caught; in any other it may hide in rounding."""
    kernel: str = ""
    """The noisy kernel that it was run in, packed and unpacked passes alike, or ""."""
    model: str = ""
    """The model that it was planted in, where that is another than the record's, or ""."""
    dtype: DtypeName
    cases: list[str]
    outcome: OutcomeName
    reasons: list[str]
    margin: Measured
    """Largest measured / budget over all checks and cases."""
    weakest_margin: Measured
    """The same on the case that showed it least."""
    weakest_case: str
    caught_by: list[str]
    sole_check: str
    """The family of checks that alone caught it, or ""."""
    catches: list[CatchRecord]

    @model_validator(mode="after")
    def _outcome_rests_on_catches(self) -> Self:
        if not self.cases:
            raise ValueError(f"{self.name} was run on no case")
        if (self.outcome == "killed") > any(catch.killed for catch in self.catches):
            raise ValueError(f"{self.name} is killed, but no check caught it")
        if self.outcome == "hidden" and self.dtype in self.must_kill_in:
            raise ValueError(f"{self.name} is hidden in {self.dtype}, where it must be caught")
        if self.outcome in ("killed", "survived", "hidden") and self.kind != "fault":
            raise ValueError(f"{self.name} is {self.outcome}, but no fault")
        if self.outcome in ("quiet", "flagged") and self.kind != "equivalent":
            raise ValueError(f"{self.name} is {self.outcome}, but no equivalent mutant")
        return self

    @property
    def as_wanted(self) -> bool:
        """Whether the checks did what they must."""
        return self.outcome in AS_WANTED[self.kind]

    @property
    def label(self) -> str:
        """Its name, with the kernel or model that it was run in where that is not the usual one."""
        place = self.kernel or self.model
        return f"{self.name} in {place}" if place else self.name

    @property
    def deciding_margin(self) -> float:
        """The largest margin of a check that caught it.

        Of parity that on the case that showed it least; in bfloat16, where one case is enough, on the one that did
        most. Infinite for a check without a budget, and for a value that is not finite: there is no "nearly".
        """
        parity = self.margin if self.dtype == "bfloat16" else self.weakest_margin
        others = [
            c.margin if c.distance and math.isfinite(c.margin) else math.inf
            for c in self.catches
            if c.killed and c.check not in PARITY
        ]
        return max([*others, parity]) if others else parity

    @property
    def weak(self) -> bool:
        """Caught, but with less margin than wanted."""
        return self.outcome == "killed" and not self.deciding_margin >= WANTED_MARGIN[self.dtype]


class KernelRecord(RecordPart):
    """A harmless property of kernels that some mutations were run in."""

    name: str
    what: str
    why_harmless: str
    imitates: list[str]


class KillMatrix(RecordPart):
    """One run of the fault catalogue."""

    schema_version: Literal[2] = 2
    kind: Literal["kill-matrix"] = "kill-matrix"
    tool_version: str
    command: list[str]
    created_utc: str
    verdict: VerdictName
    environment: Environment
    model: ModelRecord
    objective: Settings
    seeds: dict[str, int]
    policy: Settings
    num_compared: Count
    cases: list[CaseRecord]
    mutations: list[MutationRecord]
    kernels: list[KernelRecord]
    timing: TimingRecord
    notes: list[str]

    @model_validator(mode="after")
    def _pass_means_as_wanted(self) -> Self:
        if self.verdict == "PASS" and (not self.mutations or not all(m.as_wanted for m in self.mutations)):
            raise ValueError("the kill matrix is PASS, but nothing was planted, or a check did not do what it must")
        return self

    def of_kind(self, kind: Literal["fault", "equivalent"]) -> Sequence[MutationRecord]:
        """The faults, or the equivalent mutants."""
        return [mutation for mutation in self.mutations if mutation.kind == kind]

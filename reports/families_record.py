"""The record of model families on packed rows: which of them isolate examples, called in which way."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, FiniteFloat, model_validator

from reports.record_setting import Environment
from reports.values import Count, RecordPart, Text

FAMILIES_VERSION: Literal[1] = 1

WayOutcome = Literal["isolated", "leaks", "other-values", "refused", "unresolved"]
FamilyState = Literal["measured", "not-built", "timed-out", "crashed"]
Positions = Literal["honoured", "shifted", "ignored", "refused"]

OUTCOMES: tuple[WayOutcome, ...] = get_args(WayOutcome)
Measure = Annotated[FiniteFloat, Field(ge=0)]


class WayRecord(RecordPart):
    """One way of calling one family."""

    way: Text
    outcome: WayOutcome
    bit_identical: bool | None
    """Whether other tokens in the first example left every bit of the second's logits; None where refused."""
    score: Measure | None
    """0: as alone. 1: as with the neighbours as part of the prompt."""
    noise: Measure | None
    """The same of harmless changes."""
    nats: Measure | None
    """Largest difference of a log-prob between packed and alone."""
    reason: Text

    @model_validator(mode="after")
    def _is_explained(self) -> Self:
        if self.outcome in ("refused", "unresolved"):
            if not self.reason:
                raise ValueError(f"{self.way}: {self.outcome} without a reason")
        elif self.bit_identical is None or self.score is None or self.noise is None or self.nats is None:
            raise ValueError(f"{self.way}: {self.outcome}, but not measured")
        if self.outcome == "leaks" and self.bit_identical:
            raise ValueError(f"{self.way}: leaks, but other tokens in front leave every bit")
        return self


class FamilyRecord(RecordPart):
    """One model family; without ways where it could not be measured."""

    model_type: Text
    architecture: Text
    state: FamilyState
    reason: Text
    num_parameters: Count | None
    layer_kinds: list[Text]
    positions: Positions | None
    ways: list[WayRecord]
    elapsed_s: Measure

    @model_validator(mode="after")
    def _is_measured_or_explained(self) -> Self:
        if (self.state == "measured") != bool(self.ways) or bool(self.ways) == bool(self.reason):
            raise ValueError(f"{self.model_type}: {self.state} with {len(self.ways)} ways, reason {self.reason!r}")
        return self

    def outcome(self, way: str) -> WayOutcome | None:
        """The outcome of a way; None where the family was not measured."""
        return next((each.outcome for each in self.ways if each.way == way), None)


class FamiliesRecord(RecordPart):
    """A run over model families."""

    kind: Literal["families"] = "families"
    schema_version: Literal[1] = FAMILIES_VERSION
    tool_version: Text
    created_utc: Text
    command: list[Text]
    environment: Environment
    seed: Count
    seconds_per_family: Annotated[FiniteFloat, Field(gt=0)]
    """After that a family is given up."""
    ways: dict[Text, Text]
    """Each way of calling and the call, the one that is judged first."""
    families: list[FamilyRecord]
    total_s: Measure

    @property
    def judged_way(self) -> str:
        """The way that decides the exit status."""
        return next(iter(self.ways))

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.families or not self.ways:
            raise ValueError("no family or no way of calling: nothing was measured")
        names = [family.model_type for family in self.families]
        if len(set(names)) != len(names):
            raise ValueError("a family is there twice")
        for family in self.families:
            if family.ways and [way.way for way in family.ways] != list(self.ways):
                raise ValueError(f"{family.model_type}: its ways of calling are not those of the run")
        return self

    def count(self, way: str, outcome: WayOutcome) -> int:
        """How many families came to that in a way of calling."""
        return sum(family.outcome(way) == outcome for family in self.families)

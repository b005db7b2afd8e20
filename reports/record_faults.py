"""What a run says of faults: which it would have caught, which it could not have seen, and which it suspects."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from reports.record_names import DtypeName
from reports.values import Measured, RecordPart, Text


class PlantedRecord(RecordPart):
    """A fault that was planted in this very run, and what the run's own checks made of it."""

    fault: Text
    """Its name in docs/faults.md."""
    stage: Text
    what: Text
    dtype: DtypeName
    cases: list[Text]
    killed: bool
    margin: Measured
    """Largest measured / budget; infinite where a check without a budget caught it."""
    caught_by: list[Text]
    """Families of checks that caught it; empty if it survived."""
    margins: dict[str, Measured]
    """Largest measured / budget in each family of checks that saw it; infinite where a check has no budget."""

    @model_validator(mode="after")
    def _killed_by_something(self) -> Self:
        if self.killed != bool(self.caught_by):
            raise ValueError(f"{self.fault}: killed is {self.killed}, but it was caught by {self.caught_by}")
        return self


class BlindSpotRecord(RecordPart):
    """A kind of fault that this run could not have seen."""

    what: Text
    """E.g. "faults that need positions beyond 256"."""
    why: Text
    """E.g. "the longest path of these cases has 190 tokens"."""
    faults: list[Text]
    """Names in docs/faults.md of faults of this kind; may be empty."""


class NearFaultRecord(RecordPart):
    """A fault of the catalogue whose signature is near to what was seen."""

    fault: Text
    stage: Text
    what: Text
    distance: Measured
    """0 is the same signature, 1 as far as nothing in common; see docs/diagnosis.md."""


class StageRecord(RecordPart):
    """A stage of the packed computation as a suspect."""

    stage: Text
    distance: Measured
    because: Text


class DiagnosisRecord(RecordPart):
    """What is probably wrong with a subject that failed, and where. Every part is a finding, not a proof."""

    subject: Text
    dtype: DtypeName
    case: Text
    """The failing case that the diagnosis was made on."""
    worst: Text
    """The worst place, by meaning."""
    patterns: list[Text]
    """Which values differ, most telling first, e.g. "all tokens of the rejected response but its first"."""
    stages: list[StageRecord]
    """Suspects, nearest first."""
    nearest: list[NearFaultRecord]
    first_layer: Text
    """The first decoder layer whose hidden states differ beyond rounding, in words; "" where it was not looked for."""
    odd_one_out: Text
    """Which of unpacked, dense, sparse and split disagrees with the others; "" where it was not looked for."""
    reproduction: Text
    """Folder of the shrunk reproduction; "" where none was asked for."""
    notes: list[Text]
    """What was left out of the diagnosis, and why."""

"""The journal of a calibration: settings first, then a line for each batch as soon as it is measured.

An interrupted run goes on from it. Lines come in the order of the batches, whatever number of processes measured them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from reports.calibration import BatchRecord, DrawnKind
from reports.record_names import DtypeName
from reports.store import OutputError, RecordError, problems_of
from reports.values import Settings

JOURNAL_FILE = "calibration.jsonl"


class JournalSettings(BaseModel):
    """What two runs must have in common for one to go on where the other stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    case_kind: DrawnKind = "pairs"
    dtypes: list[DtypeName]
    policy: Settings
    variations: list[str]
    versions: dict[str, str]
    """Of everything that the drawn cases or the measured values depend on."""


class Journal:
    """A journal that is being read or continued.

    Args:
        folder: Where ``calibration.jsonl`` lies.
        settings: The settings of this run.
    """

    def __init__(self, folder: Path, settings: JournalSettings) -> None:
        self.path, self._settings = folder / JOURNAL_FILE, settings

    def start(self) -> None:
        """Begin a new journal.

        Raises:
            OutputError: There is one already, or none can be written.
        """
        if self.path.exists():
            raise OutputError(
                f"{self.path} is there from an earlier run: give --resume to go on with it, or another --out"
            )
        self._write("x", self._settings.model_dump_json())

    def resume(self) -> int:
        """Go on with a journal; a last line that was cut off is dropped.

        Returns:
            How many batches it holds.

        Raises:
            RecordError: It is damaged, or of other settings; the message says which.
            OutputError: There is none.
        """
        if not self.path.is_file():
            raise OutputError(f"--resume: there is no {self.path}; leave --resume out to begin a new calibration")
        whole = self._drop_what_was_cut_off()
        if whole == 0:
            self.path.unlink()
            self.start()
            return 0
        lines = self._lines()
        self._check_settings(next(lines))
        count = 0
        for count, line in enumerate(lines, start=1):
            self._batch(count - 1, line)
        return count

    def append(self, batch: BatchRecord) -> None:
        """Add the next batch."""
        self._write("a", batch.model_dump_json())

    def batches(self, count: int) -> Iterator[BatchRecord]:
        """The first so many batches, one at a time."""
        lines = self._lines()
        next(lines)
        for number, line in zip(range(count), lines, strict=False):
            yield self._batch(number, line)

    def _lines(self) -> Iterator[str]:
        with self.path.open(encoding="utf-8") as file:
            yield from file

    def _drop_what_was_cut_off(self) -> int:
        """Bytes that are left: up to the end of the last whole line."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        return whole

    def _check_settings(self, line: str) -> None:
        try:
            before = JournalSettings.model_validate_json(line)
        except ValidationError as error:
            raise RecordError(
                f"{self.path}, line 1: not the settings of a calibration: {problems_of(error)}"
            ) from error
        for name in JournalSettings.model_fields:
            old, new = getattr(before, name), getattr(self._settings, name)
            if old != new:
                raise RecordError(
                    f"{self.path} was begun with another {name}: {_short(old, new)}; use the same, or another --out"
                )

    def _batch(self, number: int, line: str) -> BatchRecord:
        try:
            batch = BatchRecord.model_validate_json(line)
        except ValidationError as error:
            raise RecordError(f"{self.path}, line {number + 2}: not a batch: {problems_of(error)}") from error
        if batch.number != number:
            raise RecordError(f"{self.path}, line {number + 2}: batch {batch.number} where {number} is due")
        return batch

    def _write(self, mode: str, line: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8", newline="\n") as file:
                file.write(line + "\n")
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}") from error


def _short(old: object, new: object) -> str:
    """Both values, or of two mappings only what differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        old, new = ({key: side.get(key) for key in keys} for side in (old, new))
    texts = [json.dumps(side, ensure_ascii=False) for side in (old, new)]
    return f"{texts[0][:120]}, now {texts[1][:120]}"

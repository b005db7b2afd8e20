"""The journal of a run: its settings first, then every step and every held-out result as soon as it was read.

A line is on the disk before the next step begins, so that an interruption costs no more than the round it falls into.
Each ends with a checksum of itself: a digit of a time that has changed on the disk is a time all the same. Rank 0 keeps
it for all ranks.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from reports.cost_record import HeldOutRecord, StepRecord
from reports.store import OutputError, RecordError, problems_of
from reports.values import RecordPart, Settings

JOURNAL_FILE = "cost-journal.jsonl"
_CHECKED = re.compile(r'(.*),"crc32":(\d+)\}', re.DOTALL)


class JournalSettings(RecordPart):
    """What two runs must have in common for one to go on where the other stopped."""

    kind: Literal["cost-journal"] = "cost-journal"
    options: Settings
    """Everything that decides what is measured."""
    versions: dict[str, str]
    machine: Settings
    """Times of two machines do not belong in one median."""


class _Line(RecordPart):
    """A step or a held-out result of one workload; never both."""

    workload: int
    step: StepRecord | None = None
    held_out: HeldOutRecord | None = None


@dataclass(slots=True)
class Done:
    """What a journal holds of one workload."""

    steps: list[StepRecord] = field(default_factory=list)
    held_out: list[HeldOutRecord] = field(default_factory=list)

    def rounds(self, *, num_paths: int, num_ranks: int) -> int:
        """Rounds from the first on of which every path and rank is there."""
        counts: dict[int, int] = {}
        for step in self.steps:
            if step.phase == "measured":
                counts[step.round] = counts.get(step.round, 0) + 1
        number = 0
        while counts.get(number) == num_paths * num_ranks:
            number += 1
        return number

    def is_over(self, *, num_rounds: int, num_paths: int, num_ranks: int, holds_out: bool) -> bool:
        """Whether nothing of it is left to do."""
        if self.rounds(num_paths=num_paths, num_ranks=num_ranks) < num_rounds:
            return False
        return not holds_out or sum(held.when == "end" for held in self.held_out) == num_paths

    def add(self, step: StepRecord) -> None:
        """Add a step; one that was measured again, since it fell into a round that was interrupted, counts anew."""
        if step.phase == "measured":
            place = (step.round, step.path, step.rank)
            self.steps = [s for s in self.steps if s.phase != "measured" or (s.round, s.path, s.rank) != place]
        self.steps.append(step)

    def hold_out(self, held_out: HeldOutRecord) -> None:
        """Add what was held out; it too counts anew where it was interrupted."""
        place = (held_out.when, held_out.path)
        self.held_out = [*(each for each in self.held_out if (each.when, each.path) != place), held_out]

    def without_rounds_from(self, number: int) -> Done:
        """The same without the measured rounds from one on, and without what is held out at the end."""
        steps = [step for step in self.steps if step.phase == "warm-up" or step.round < number]
        return Done(steps, [held for held in self.held_out if held.when == "start"])


class Journal:
    """A journal that is being written.

    Args:
        folder: Where it lies.
        settings: Of this run.
    """

    def __init__(self, folder: Path, settings: JournalSettings) -> None:
        self.path, self._settings = folder / JOURNAL_FILE, settings

    def start(self) -> None:
        """Begin a new one.

        Raises:
            OutputError: There is one already, or none can be written.
        """
        if self.path.exists():
            raise OutputError(
                f"{self.path} is there from an earlier run: give --resume to go on with it, or another --out"
            )
        self._write([self._settings.model_dump_json()], "x")

    def resume(self) -> dict[int, Done]:
        """What it holds, by the number of the workload; a last line that was cut off is dropped.

        Raises:
            RecordError: It is damaged, or of other settings; the message says which.
            OutputError: There is none.
        """
        if not self.path.is_file():
            raise OutputError(f"--resume: there is no {self.path}; leave --resume out to begin a new run")
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        # Not splitlines(): what JSON leaves as it is, U+2028 in the name of a file, ends a line to it.
        first, *lines = content[:whole].decode("utf-8", "replace").split("\n")[:-1] or [""]
        if not first:  # interrupted while it was begun
            self.path.unlink()
            self.start()
            return {}
        self._check_settings(first)
        if whole < len(content):
            os.truncate(self.path, whole)
        done: dict[int, Done] = {}
        for number, text in enumerate(lines, start=2):
            line = self._line(number, text)
            of_workload = done.setdefault(line.workload, Done())
            if line.step is not None:
                of_workload.add(line.step)
            if line.held_out is not None:
                of_workload.hold_out(line.held_out)
        return done

    def add_steps(self, workload: int, steps: Sequence[StepRecord]) -> None:
        """Add steps, of every rank together."""
        self._append(_Line(workload=workload, step=step) for step in steps)

    def add_held_out(self, workload: int, held_out: Sequence[HeldOutRecord]) -> None:
        """Add what was held out, of every path together."""
        self._append(_Line(workload=workload, held_out=held) for held in held_out)

    def _append(self, lines: Iterable[_Line]) -> None:
        self._write([line.model_dump_json() for line in lines], "a")

    def _write(self, lines: Sequence[str], mode: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8", newline="\n") as file:
                file.write("".join(f"{_with_checksum(line)}\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}") from error

    def _checked(self, number: int, text: str) -> str:
        """A line without its checksum, which it must have."""
        found = _CHECKED.fullmatch(text)
        if found is None or zlib.crc32(f"{found[1]}}}".encode()) != int(found[2]):
            raise RecordError(
                f"{self.path}, line {number}: damaged, or written by another version: its checksum is not that of its "
                "text; begin anew in another --out"
            )
        return f"{found[1]}}}"

    def _check_settings(self, text: str) -> None:
        try:
            before = JournalSettings.model_validate_json(self._checked(1, text))
        except ValidationError as error:
            raise RecordError(f"{self.path}, line 1: not the settings of a run: {problems_of(error)}") from error
        for name in ("options", "versions", "machine"):
            old, new = getattr(before, name), getattr(self._settings, name)
            if key := next((key for key in old.keys() | new.keys() if old.get(key) != new.get(key)), None):
                raise RecordError(
                    f"{self.path} was begun with another {key}: {_short(old.get(key))}, now {_short(new.get(key))}; "
                    "use the same, or another --out"
                )

    def _line(self, number: int, text: str) -> _Line:
        try:
            return _Line.model_validate_json(self._checked(number, text))
        except ValidationError as error:
            raise RecordError(
                f"{self.path}, line {number}: not a step or a held-out result: {problems_of(error)}"
            ) from error


def _with_checksum(text: str) -> str:
    """An object in JSON with one more field, the CRC-32 of its text without it."""
    return f'{text[:-1]},"crc32":{zlib.crc32(text.encode())}}}'


def _short(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:120]

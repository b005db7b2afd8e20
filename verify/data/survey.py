"""A preference file of any size, surveyed in one pass and constant memory: what can be packed, and how long it is."""

from __future__ import annotations

import gc
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from verify.data.file_order import FileOrder, source_of
from verify.data.length_statistics import LengthHistogram, Reservoir
from verify.data.pairs import PromptAndResponses
from verify.data.rows import DataError, Place, Row, check_file, is_parquet, iter_rows, parquet_num_rows
from verify.data.shapes import Shape, left_out_columns, same_shape
from verify.data.violations import Reason, Remark, UnusableRow, Violation
from verify.packing_plan.costs import GroupLengths
from verify.packing_plan.prefix_trees import TokenGroup
from verify.packing_plan.totals import MOST_GROUPS, NOTHING, GroupArrays, Totals, totals_of

PARTS = ("prompt", "chosen", "rejected", "group")
"""What lengths are kept of; "group" is the prompt once and all responses."""

SAMPLE_SIZE = 8192
"""Groups whose lengths are kept for the simulation."""

TOKENISED_SAMPLE_SIZE = 1024
"""Groups whose tokens are kept, to count what their prefix trees hold."""

MOST_COUNTED = 64
"""Sums are kept for each number of responses up to this one, and for all larger ones together."""

EXAMPLES_KEPT = 3
"""Rows named for each reason."""

_BYTES_AT_A_TIME = 4 * 2**20
"""More than this is not kept in order to be measured together."""
_ROWS_BETWEEN_PROGRESS = 256
_OBJECTS_BETWEEN_COLLECTIONS = 100_000


class GroupSizes(NamedTuple):
    """Lengths of one row, in the unit of the measure, what is odd about it, and its tokens where it was tokenised."""

    prompt: int
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    remarks: tuple[Remark, ...] = ()
    tokens: TokenGroup | None = None


class Measure(Protocol):
    """How long things are."""

    @property
    def unit(self) -> str:
        """Plural noun: "tokens"."""

    @property
    def rows_at_a_time(self) -> int:
        """How many rows it is best given together."""

    def sizes(self, rows: Sequence[PromptAndResponses]) -> Sequence[GroupSizes | UnusableRow]:
        """The lengths of each row, or why it cannot be used."""


@dataclass(slots=True)
class Counted:
    """How many rows something was said about, and the first of them."""

    rows: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Count one more row."""
        self.rows += 1
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSurvey:
    """What a file holds.

    Args:
        file: Base name of the file.
        sha256: Digest of its bytes.
        shape: Name of the shape that all its rows have.
        rows_read: Rows, usable or not.
        violations: By reason, the rows that cannot be packed.
        remarks: By kind, rows that can be packed but are odd.
        left_out: By name, the rows that fill a column which is not read.
        histograms: Lengths of the usable rows, by part.
        totals: Costs of the usable rows, by number of responses.
        longest: Length of the longest usable row, packed.
        longest_at: Where it stands.
        order: Whether neighbours in the file are alike.
        sample: Lengths of sampled rows, in file order.
        tokenised: Tokens of sampled rows, in file order; none where the measure does not tokenise.
        seed: Seed of both samples.
        elapsed_s: Wall time of the pass.
    """

    file: str
    sha256: str
    shape: str
    rows_read: int
    violations: Mapping[Reason, Counted]
    remarks: Mapping[Remark, Counted]
    left_out: Mapping[str, int]
    histograms: Mapping[str, LengthHistogram]
    totals: Mapping[int, Totals]
    longest: int
    longest_at: Place | None
    order: FileOrder
    sample: Sequence[GroupLengths]
    tokenised: Sequence[TokenGroup]
    seed: int
    elapsed_s: float

    @property
    def usable(self) -> int:
        """Rows that can be packed."""
        return sum(totals.num_groups for totals in self.totals.values())


Progress = Callable[[float, int, float], None]
"""Told the share of the file that is read, the rows, and the seconds since the start."""


def survey_file(
    path: Path,
    measure: Measure,
    *,
    seed: int,
    max_sequence: int | None = None,
    max_group: int | None = None,
    progress: Progress = lambda share, rows, elapsed_s: None,
) -> FileSurvey:
    """Read every row of a file once.

    Args:
        path: A .jsonl, .json (JSON Lines) or .parquet file whose rows have one of the known shapes.
        measure: How long things are.
        seed: Seed of the sample.
        max_sequence: The trainer's limit on prompt and one response; a longer one would be truncated, which is a
            violation.
        max_group: Longest packed pair that is used; longer ones are a violation.
        progress: Told now and then how far it is.

    Returns:
        The survey; it may hold no usable pair.

    Raises:
        DataError: The file or one of its rows cannot be read, the shape changes, or a conversation has no response:
            it ends with a turn that is not the assistant's.
    """
    check_file(path)
    with _rare_collections():
        return _survey_file(path, measure, _Survey(measure, seed, max_sequence, max_group), seed, progress)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for garbage in cycles seldom: each row makes dozens of objects, none of them in a cycle."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _survey_file(path: Path, measure: Measure, survey: _Survey, seed: int, progress: Progress) -> FileSurvey:
    reading = _Reading(path)
    started = time.monotonic()
    shape: Shape | None = None
    rows_at_a_time = measure.rows_at_a_time
    measure_at = _BYTES_AT_A_TIME
    for row in iter_rows(path, on_block=reading.follow):
        shape = same_shape(row, shape)
        survey.see(row)
        try:
            survey.wait(shape.read(row), row)
        except UnusableRow as unusable:
            survey.leave_out(unusable.violation)
        if len(survey.waiting) >= rows_at_a_time or reading.bytes_read > measure_at:
            survey.measure()
            measure_at = reading.bytes_read + _BYTES_AT_A_TIME
        if not survey.rows_read % _ROWS_BETWEEN_PROGRESS:
            progress(reading.share(survey.rows_read), survey.rows_read, time.monotonic() - started)
    survey.measure()
    survey.settle()
    if shape is None:
        raise AssertionError("iter_rows yields at least one row or raises")
    elapsed_s = time.monotonic() - started
    progress(1.0, survey.rows_read, elapsed_s)
    return FileSurvey(
        file=path.name,
        sha256=reading.sha256(),
        shape=shape.name,
        rows_read=survey.rows_read,
        violations={reason: survey.violations[reason] for reason in Reason if reason in survey.violations},
        remarks=survey.remarks,
        left_out=dict(sorted(survey.left_out.items())),
        histograms=survey.histograms,
        totals=dict(sorted(survey.totals.items())),
        longest=survey.longest,
        longest_at=survey.longest_at,
        order=survey.order,
        sample=tuple(GroupLengths(*lengths) for lengths in survey.reservoir.sample()),
        tokenised=tuple(survey.tokenised.sample()),
        seed=seed,
        elapsed_s=elapsed_s,
    )


class _Reading:
    """How far a file is read, and the digest of its bytes: of a JSON Lines file, of the very bytes that were read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.bytes_read = 0
        self._digest = hashlib.sha256()
        self._size = path.stat().st_size
        self._parquet_rows = parquet_num_rows(path) if is_parquet(path) else None
        self._parquet_sha256 = self._sha256_of_file() if is_parquet(path) else None

    def follow(self, block: bytes) -> None:
        self._digest.update(block)
        self.bytes_read += len(block)

    def share(self, rows: int) -> float:
        whole, part = (self._size, self.bytes_read) if self._parquet_rows is None else (self._parquet_rows, rows)
        return min(1.0, part / whole) if whole else 1.0

    def sha256(self) -> str:
        if self._parquet_sha256 is None:
            return self._digest.hexdigest()
        if self._sha256_of_file() != self._parquet_sha256:
            raise DataError(f"preference file {self._path} changed while it was read: give a file that is complete")
        return self._parquet_sha256

    def _sha256_of_file(self) -> str:
        with self._path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


class _Survey:
    """What is kept of the rows so far."""

    def __init__(self, measure: Measure, seed: int, max_sequence: int | None, max_group: int | None) -> None:
        self._measure = measure
        self._max_sequence = max_sequence
        self._max_group = max_group
        self.rows_read = 0
        self.violations: dict[Reason, Counted] = {}
        self.remarks: dict[Remark, Counted] = {}
        self.left_out: Counter[str] = Counter()
        self.histograms = {part: LengthHistogram() for part in PARTS}
        self.totals: dict[int, Totals] = {}
        self.longest = 0
        self.longest_at: Place | None = None
        self.order = FileOrder()
        self.reservoir: Reservoir[tuple[int, tuple[int, ...]]] = Reservoir(SAMPLE_SIZE, seed)
        self.tokenised: Reservoir[TokenGroup] = Reservoir(TOKENISED_SAMPLE_SIZE, seed)
        self.waiting: list[PromptAndResponses] = []
        self._sources: list[str | None] = []
        self._measured: list[tuple[GroupSizes, Place]] = []

    def see(self, row: Row) -> None:
        """Count a row, whatever becomes of it."""
        self.rows_read += 1
        for name in left_out_columns(row):
            self.left_out[name] += 1

    def wait(self, read: PromptAndResponses, row: Row) -> None:
        """Put a row aside, to be measured with others."""
        self.waiting.append(read)
        self._sources.append(source_of(row.columns))

    def leave_out(self, violation: Violation) -> None:
        """Count a row that cannot be packed; refuse one that is no preference row at all."""
        if violation.reason is Reason.NO_FINAL_ASSISTANT_TURN:
            raise DataError(
                f"{violation.place}: {violation.detail}, so there is no response: expected conversations that end with "
                "the assistant's turn; leave the row out of the file"
            )
        self.violations.setdefault(violation.reason, Counted()).add(str(violation))

    def measure(self) -> None:
        """Measure the rows that wait; their lengths are added to the sums now and then."""
        has_limit = self._max_sequence is not None or self._max_group is not None
        prompts: list[object] = []
        sources: list[str | None] = []
        for read, source, sizes in zip(self.waiting, self._sources, self._measure.sizes(self.waiting), strict=True):
            if isinstance(sizes, UnusableRow):
                self.leave_out(sizes.violation)
                continue
            if has_limit and (violation := self._over_a_limit(read.place, sizes)) is not None:
                self.leave_out(violation)
                continue
            if sizes.tokens is not None:
                self.tokenised.add([sizes.tokens])
                sizes = sizes._replace(tokens=None)  # the sums need lengths alone
            self._measured.append((sizes, read.place))
            prompts.append(read.prompt)
            sources.append(source)
            for remark in sizes.remarks:
                self.remarks.setdefault(remark, Counted()).add(str(read.place))
            if len(self._measured) == MOST_GROUPS:
                self.settle()
        self.order.add_texts(prompts, sources)
        self.waiting.clear()
        self._sources.clear()

    def settle(self) -> None:
        """Add the lengths that were put aside to the sums."""
        if not self._measured:
            return
        sizes, places = zip(*self._measured, strict=True)
        prompts, chosen, rejected, _, _ = zip(*sizes, strict=True)
        responses = [(*these, *others) for these, others in zip(chosen, rejected, strict=True)]
        groups = GroupArrays.of(prompts, responses)
        packed = groups.prompt + groups.total
        for part, lengths in zip(PARTS, (prompts, _flat(chosen), _flat(rejected), packed), strict=True):
            self.histograms[part].add(np.array(lengths, dtype=np.int64))
        for count in np.unique(groups.count).tolist():
            key = min(count, MOST_COUNTED)
            self.totals[key] = self.totals.get(key, NOTHING) + totals_of(groups.where(groups.count == count))
        if packed.max() > self.longest:
            self.longest, self.longest_at = int(packed.max()), places[int(packed.argmax())]
        self.order.add_lengths(packed)
        self.reservoir.add(list(zip(prompts, responses, strict=True)))
        self._measured.clear()

    def _over_a_limit(self, place: Place, sizes: GroupSizes) -> Violation | None:
        unit = self._measure.unit
        longer = sizes.prompt + max(*sizes.chosen, *sizes.rejected)
        if self._max_sequence is not None and longer > self._max_sequence:
            detail = f"{longer} {unit} in prompt and one response, where the trainer cuts at {self._max_sequence}"
            return Violation(Reason.TRUNCATED, place, detail)
        packed = sizes.prompt + sum(sizes.chosen) + sum(sizes.rejected)
        if self._max_group is not None and packed > self._max_group:
            detail = f"{packed} {unit} in prompt and all responses, at most {self._max_group} asked for"
            return Violation(Reason.OVER_MAX_TOKENS, place, detail)
        return None


def _flat(lengths: Sequence[tuple[int, ...]]) -> list[int]:
    return [length for several in lengths for length in several]

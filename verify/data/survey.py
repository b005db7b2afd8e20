"""A preference file of any size, surveyed in one pass and constant memory: what can be packed, and how long it is."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from verify.data.length_statistics import Ints, LengthHistogram, Reservoir
from verify.data.pairs import Pair
from verify.data.rows import DataError, Place, Row, check_file, is_parquet, iter_rows, parquet_num_rows
from verify.data.shapes import Shape, left_out_columns, same_shape
from verify.data.violations import Reason, Remark, UnusableRow, Violation
from verify.packing_plan.totals import MOST_PAIRS, NO_PAIRS, Totals, totals_of

PARTS = ("prompt", "chosen", "rejected", "pair")
"""What lengths are kept of; "pair" is the prompt once and both responses."""

SAMPLE_SIZE = 8192
"""Pairs kept for the simulation."""

EXAMPLES_KEPT = 3
"""Rows named for each reason."""

_BYTES_AT_A_TIME = 4 * 2**20
"""More than this is not kept in order to be measured together."""
_ROWS_BETWEEN_PROGRESS = 256


class PairSizes(NamedTuple):
    """Lengths of one pair, in the unit of the measure, and what is odd about it."""

    prompt: int
    chosen: int
    rejected: int
    remarks: tuple[Remark, ...] = ()


class Measure(Protocol):
    """How long things are."""

    @property
    def unit(self) -> str:
        """Plural noun: "tokens"."""

    @property
    def pairs_at_a_time(self) -> int:
        """How many pairs it is best given together."""

    def sizes(self, pairs: Sequence[Pair]) -> Sequence[PairSizes | UnusableRow]:
        """The lengths of each pair, or why it cannot be used."""


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
        histograms: Lengths of the usable pairs, by part.
        totals: Costs of the usable pairs.
        longest: Length of the longest usable pair, packed.
        longest_at: Where it stands.
        sample: Prompt, chosen and rejected length of sampled pairs, in file order; int64, [N, 3].
        seed: Seed of the sample.
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
    totals: Totals
    longest: int
    longest_at: Place | None
    sample: Ints
    seed: int
    elapsed_s: float

    @property
    def usable(self) -> int:
        """Rows that can be packed."""
        return self.totals.num_pairs


Progress = Callable[[float, int, float], None]
"""Told the share of the file that is read, the rows, and the seconds since the start."""


def survey_file(
    path: Path,
    measure: Measure,
    *,
    seed: int,
    max_sequence: int | None = None,
    max_pair: int | None = None,
    progress: Progress = lambda share, rows, elapsed_s: None,
) -> FileSurvey:
    """Read every row of a file once.

    Args:
        path: A .jsonl, .json (JSON Lines) or .parquet file whose rows have one of the known shapes.
        measure: How long things are.
        seed: Seed of the sample.
        max_sequence: The trainer's limit on prompt and one response; a longer one would be truncated, which is a
            violation.
        max_pair: Longest packed pair that is used; longer ones are a violation.
        progress: Told now and then how far it is.

    Returns:
        The survey; it may hold no usable pair.

    Raises:
        DataError: The file or one of its rows cannot be read, the shape changes, or a conversation has no response:
            it ends with a turn that is not the assistant's.
    """
    check_file(path)
    reading = _Reading(path)
    survey = _Survey(measure, seed, max_sequence, max_pair)
    started = time.monotonic()
    shape: Shape | None = None
    pairs: list[Pair] = []
    pairs_at_a_time = measure.pairs_at_a_time
    measure_at = _BYTES_AT_A_TIME
    for row in iter_rows(path, on_line=reading.follow):
        shape = same_shape(row, shape)
        survey.see(row)
        try:
            pairs.append(shape.read(row))
        except UnusableRow as unusable:
            survey.leave_out(unusable.violation)
        if len(pairs) >= pairs_at_a_time or reading.bytes_read > measure_at:
            survey.take(pairs)
            pairs.clear()
            measure_at = reading.bytes_read + _BYTES_AT_A_TIME
        if not survey.rows_read % _ROWS_BETWEEN_PROGRESS:
            progress(reading.share(survey.rows_read), survey.rows_read, time.monotonic() - started)
    survey.take(pairs)
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
        totals=survey.totals,
        longest=survey.longest,
        longest_at=survey.longest_at,
        sample=survey.reservoir.sample(),
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

    def follow(self, line: bytes) -> None:
        self._digest.update(line)
        self.bytes_read += len(line)

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

    def __init__(self, measure: Measure, seed: int, max_sequence: int | None, max_pair: int | None) -> None:
        self._measure = measure
        self._max_sequence = max_sequence
        self._max_pair = max_pair
        self.rows_read = 0
        self.violations: dict[Reason, Counted] = {}
        self.remarks: dict[Remark, Counted] = {}
        self.left_out: Counter[str] = Counter()
        self.histograms = {part: LengthHistogram() for part in PARTS}
        self.totals = NO_PAIRS
        self.longest = 0
        self.longest_at: Place | None = None
        self.reservoir = Reservoir(SAMPLE_SIZE, 3, seed)
        self._lengths: list[tuple[int, int, int]] = []

    def see(self, row: Row) -> None:
        """Count a row, whatever becomes of it."""
        self.rows_read += 1
        for name in left_out_columns(row):
            self.left_out[name] += 1

    def leave_out(self, violation: Violation) -> None:
        """Count a row that cannot be packed; refuse one that is no preference row at all."""
        if violation.reason is Reason.NO_FINAL_ASSISTANT_TURN:
            raise DataError(
                f"{violation.place}: {violation.detail}, so there is no response: expected conversations that end with "
                "the assistant's turn; leave the row out of the file"
            )
        self.violations.setdefault(violation.reason, Counted()).add(str(violation))

    def take(self, pairs: Sequence[Pair]) -> None:
        """Measure some pairs; their lengths are added to the sums now and then."""
        has_limit = self._max_sequence is not None or self._max_pair is not None
        for pair, sizes in zip(pairs, self._measure.sizes(pairs), strict=True):
            if isinstance(sizes, UnusableRow):
                self.leave_out(sizes.violation)
                continue
            if has_limit and (violation := self._over_a_limit(pair.place, sizes)) is not None:
                self.leave_out(violation)
                continue
            prompt, chosen, rejected, remarks = sizes
            self._lengths.append((prompt, chosen, rejected))
            if prompt + chosen + rejected > self.longest:
                self.longest, self.longest_at = prompt + chosen + rejected, pair.place
            for remark in remarks:
                self.remarks.setdefault(remark, Counted()).add(str(pair.place))
        if len(self._lengths) >= MOST_PAIRS // 2:
            self.settle()

    def settle(self) -> None:
        """Add the lengths that were put aside to the sums."""
        for at in range(0, len(self._lengths), MOST_PAIRS):
            lengths = np.array(self._lengths[at : at + MOST_PAIRS], dtype=np.int64)
            for part, part_lengths in zip(PARTS, (*lengths.T, lengths.sum(1)), strict=True):
                self.histograms[part].add(part_lengths)
            self.totals += totals_of(lengths)
            self.reservoir.add(lengths)
        self._lengths.clear()

    def _over_a_limit(self, place: Place, sizes: PairSizes) -> Violation | None:
        unit = self._measure.unit
        longer = sizes.prompt + max(sizes.chosen, sizes.rejected)
        if self._max_sequence is not None and longer > self._max_sequence:
            detail = f"{longer} {unit} in prompt and one response, where the trainer cuts at {self._max_sequence}"
            return Violation(Reason.TRUNCATED, place, detail)
        packed = sizes.prompt + sizes.chosen + sizes.rejected
        if self._max_pair is not None and packed > self._max_pair:
            detail = f"{packed} {unit} in prompt and both responses, at most {self._max_pair} asked for"
            return Violation(Reason.OVER_MAX_TOKENS, place, detail)
        return None

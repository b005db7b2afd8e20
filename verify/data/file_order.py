"""Whether neighbours in a file are alike: one source after the other, sorted by length, one prompt several times.

Rows and steps that follow such an order would train on one kind of example at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify.data.length_statistics import Ints

_SOURCE_COLUMNS = ("source", "dataset")
"""Columns that say where a row was taken from; the first that a row has counts."""

_ANY_SOURCE_COLUMN = frozenset(_SOURCE_COLUMNS)
_SOURCE_LENGTH = 200
_MOST_SOURCES = 1000
"""More different values are no sources but something else."""
_FLAGGED_ABOVE = 6.0
"""Standard deviations above what a random order gives; one file in a billion is that high by chance."""


@dataclass(frozen=True, slots=True)
class Alikeness:
    """How much more alike neighbours are than rows of a file in random order.

    Args:
        found: Of neighbours.
        random: Expected in random order.
        spread: Standard deviation of that.
    """

    found: float
    random: float
    spread: float

    @property
    def follows(self) -> bool:
        """Whether the file follows an order, and that matters: by more than chance, and by a tenth at least."""
        return self.found - self.random > max(_FLAGGED_ABOVE * self.spread, 0.1)


def source_of(columns: Mapping[str, Any]) -> str | None:
    """Where a row says that it was taken from."""
    if _ANY_SOURCE_COLUMN.isdisjoint(columns):
        return None
    for name in _SOURCE_COLUMNS:
        if type(columns.get(name)) is str:
            return str(columns[name])[:_SOURCE_LENGTH]
    return None


class FileOrder:
    """What is kept of the neighbours in a file."""

    def __init__(self) -> None:
        self.repeated_prompts = 0
        self._rows = 0
        self._sources: Counter[str] = Counter()
        self._same_source = 0
        self._source_pairs = 0
        self._last_prompt: object = None
        self._last_source: str | None = None
        self._last_logarithm: float | None = None
        self._first_logarithm = 0.0
        self._sum = self._squares = self._products = 0.0

    def add_texts(self, prompts: Sequence[object], sources: Sequence[str | None]) -> None:
        """Add the next rows of the file: their prompts, and where each was taken from, if it says so."""
        for prompt in prompts:
            if prompt == self._last_prompt:
                self.repeated_prompts += 1
            self._last_prompt = prompt
        for source in sources:
            if source is not None:
                if self._last_source is not None:
                    self._source_pairs += 1
                    self._same_source += source == self._last_source
                if len(self._sources) <= _MOST_SOURCES:
                    self._sources[source] += 1
            self._last_source = source

    def add_lengths(self, lengths: Ints) -> None:
        """Add the lengths of the next rows."""
        self._rows += len(lengths)
        logarithms = np.log(lengths.astype(np.float64))
        if self._last_logarithm is None:
            self._first_logarithm = float(logarithms[0])
        logarithms -= self._first_logarithm  # keeps the sums of squares small, and so exact
        self._sum += float(logarithms.sum())
        self._squares += float((logarithms**2).sum())
        self._products += float((logarithms[1:] * logarithms[:-1]).sum())
        if self._last_logarithm is not None:
            self._products += self._last_logarithm * float(logarithms[0])
        self._last_logarithm = float(logarithms[-1])

    @property
    def lengths(self) -> Alikeness | None:
        """Correlation of the logarithms of neighbours' lengths; None where there is none."""
        if self._rows < 3:
            return None
        mean = self._sum / self._rows
        variance = self._squares / self._rows - mean**2
        if variance < 1e-12:
            return None
        # sum of (a - mean)(b - mean) over neighbours a, b: all but the last, all but the first (which is 0 here).
        ends = 2 * self._sum - (self._last_logarithm or 0.0)
        correlation = ((self._products - mean * ends) / (self._rows - 1) + mean**2) / variance
        return Alikeness(max(-1.0, min(1.0, correlation)), 0.0, 1 / math.sqrt(self._rows))

    @property
    def num_sources(self) -> int:
        """How many sources the rows name; 0 where they name none, or so many that it means something else."""
        return len(self._sources) if len(self._sources) <= _MOST_SOURCES else 0

    @property
    def sources(self) -> Alikeness | None:
        """Share of neighbours from one source; None where rows do not tell, or all come from one."""
        if self.num_sources < 2 or not self._source_pairs:
            return None
        rows = self._sources.total()
        expected = sum(count * (count - 1) for count in self._sources.values()) / (rows * (rows - 1))
        return Alikeness(
            self._same_source / self._source_pairs,
            expected,
            math.sqrt(expected * (1 - expected) / self._source_pairs),
        )

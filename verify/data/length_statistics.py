"""Lengths of a stream in constant memory: exact counts in bins, and a uniform sample of whole rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_EXACT_BELOW = 32
_BINS_PER_DOUBLING = 8
_DOUBLINGS = 36  # up to 2^41, which no line reaches


def _bin_bounds() -> Ints:
    """Lower bounds of the bins: one for each length at first, then eight to a doubling."""
    exact = np.arange(_EXACT_BELOW)
    geometric = _EXACT_BELOW * 2.0 ** (np.arange(_DOUBLINGS * _BINS_PER_DOUBLING) / _BINS_PER_DOUBLING)
    return np.unique(np.concatenate([exact, np.ceil(geometric)]).astype(np.int64))


class LengthHistogram:
    """Counts of lengths in bins that widen with the length, and their exact sum, least and greatest."""

    _BOUNDS = _bin_bounds()

    def __init__(self) -> None:
        self._counts = np.zeros(len(self._BOUNDS), dtype=np.int64)
        self.num_lengths = 0
        self.total = 0
        self.shortest = 0
        self.longest = 0

    def add(self, lengths: Ints) -> None:
        """Count some lengths; none of them negative."""
        if not len(lengths):
            return
        bins = np.searchsorted(self._BOUNDS, lengths, side="right") - 1
        self._counts += np.bincount(bins, minlength=len(self._BOUNDS))
        shortest, longest = int(lengths.min()), int(lengths.max())
        self.shortest = min(self.shortest, shortest) if self.num_lengths else shortest
        self.longest = max(self.longest, longest)
        self.num_lengths += len(lengths)
        self.total += int(lengths.sum())

    def bins(self) -> list[tuple[int, int, int]]:
        """(least length, greatest length, count) of each bin from the first filled one to the last."""
        filled = np.flatnonzero(self._counts)
        if not len(filled):
            return []
        return [
            (int(self._BOUNDS[i]), int(self._BOUNDS[i + 1]) - 1, int(self._counts[i]))
            for i in range(filled[0], filled[-1] + 1)
        ]

    def quantile(self, share: float) -> int:
        """A length that at least this share does not exceed: the upper end of its bin, exact below 32.

        Args:
            share: Between 0 and 1.

        Returns:
            The length; never above the longest.

        Raises:
            ValueError: No length was counted.
        """
        if not self.num_lengths:
            raise ValueError("no length was counted: there is no quantile")
        reached = np.flatnonzero(np.cumsum(self._counts) >= share * self.num_lengths)[0]
        return min(int(self._BOUNDS[reached + 1]) - 1, self.longest)


class Reservoir:
    """A uniform sample, without replacement, of the rows of a stream (Algorithm R).

    Args:
        capacity: Rows kept.
        width: Numbers in a row.
        seed: Seed of the generator; with the same seed and rows the sample is the same.
    """

    def __init__(self, capacity: int, width: int, seed: int) -> None:
        self._rows = np.zeros((capacity, width), dtype=np.int64)
        self._places = np.zeros(capacity, dtype=np.int64)
        self._generator = np.random.default_rng(seed)
        self.num_seen = 0

    def add(self, rows: Ints) -> None:
        """Offer rows, in the order of the stream."""
        capacity = len(self._rows)
        places = np.arange(self.num_seen, self.num_seen + len(rows))
        # Row number i (from 0) is kept in slot j, uniform on 0..i, if there is such a slot; the first rows fill up.
        slots = np.where(places < capacity, places, (self._generator.random(len(rows)) * (places + 1)).astype(np.int64))
        for i in np.flatnonzero(slots < capacity):
            self._rows[slots[i]] = rows[i]
            self._places[slots[i]] = places[i]
        self.num_seen += len(rows)

    def sample(self) -> Ints:
        """The rows kept, in the order of the stream."""
        size = min(self.num_seen, len(self._rows))
        return self._rows[np.argsort(self._places[:size], kind="stable")]

"""Lengths of a stream in constant memory: exact counts in bins, and a uniform sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Item = TypeVar("Item")

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


class Reservoir(Generic[Item]):
    """A uniform sample, without replacement, of the items of a stream (Algorithm R).

    Args:
        capacity: Items kept.
        seed: Seed of the generator; with the same seed and items the sample is the same.
    """

    def __init__(self, capacity: int, seed: int) -> None:
        self._capacity = capacity
        self._kept: list[tuple[int, Item]] = []
        self._generator = np.random.default_rng(seed)
        self.num_seen = 0

    def add(self, items: Sequence[Item]) -> None:
        """Offer items, in the order of the stream."""
        free = items[: self._capacity - len(self._kept)]
        self._kept += enumerate(free, start=self.num_seen)
        places = np.arange(self.num_seen + len(free), self.num_seen + len(items))
        # Item number i (from 0) is kept in slot j, uniform on 0..i, if there is such a slot.
        slots = (self._generator.random(len(places)) * (places + 1)).astype(np.int64)
        for i in np.flatnonzero(slots < self._capacity).tolist():
            self._kept[slots[i]] = int(places[i]), items[len(free) + i]
        self.num_seen += len(items)

    def sample(self) -> list[Item]:
        """The items kept, in the order of the stream."""
        return [item for _, item in sorted(self._kept, key=lambda kept: kept[0])]

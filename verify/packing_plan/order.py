"""Sampling order: shuffled before anything is packed, and a check that rows do not follow the order of the data set.

Packing decides which examples meet in an optimizer step. Where neighbours in a file are alike (one source after the
other), rows filled in file order train on one source at a time. First-fit decreasing breaks ties by position, so groups
of equal length would come in file order too, unless they are shuffled first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NUM_PERMUTATIONS = 100
_FLAGGED_BELOW = -4.0
"""Standard deviations below the mean of random assignments; one honest plan in 30,000 is that low by chance."""


def sampling_order(num_groups: int, seed: int) -> tuple[int, ...]:
    """A random order of the groups.

    Args:
        num_groups: How many groups the data set holds.
        seed: Seed of the generator; record it.

    Returns:
        Positions in the data set, in sampling order.
    """
    order = list(range(num_groups))
    random.Random(seed).shuffle(order)
    return tuple(order)


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """How far apart in the data set the groups of a row stand, against rows filled at random.

    Args:
        num_pairs: Pairs of groups in one row.
        mean_distance: Their mean distance in the data set, in groups.
        random_distance: The same for rows of the same sizes filled at random; mean over permutations.
        random_spread: Standard deviation of that over permutations.
        seed: Seed of the permutations.
    """

    num_pairs: int
    mean_distance: float
    random_distance: float
    random_spread: float
    seed: int

    @property
    def standard_deviations(self) -> float:
        """How many standard deviations the distance lies above (below: negative) that of random rows."""
        return (self.mean_distance - self.random_distance) / self.random_spread if self.random_spread else 0.0

    @property
    def follows_dataset_order(self) -> bool:
        """Whether rows hold neighbours of the data set more often than chance would have it."""
        return self.standard_deviations < _FLAGGED_BELOW


def check_order(rows: Sequence[Sequence[int]], seed: int) -> OrderCheck | None:
    """Whether rows group examples by their order in the data set.

    Args:
        rows: Positions in the data set of the groups in each row.
        seed: Seed of the random assignments that it is held against.

    Returns:
        What was found; None where no row holds two groups, so that there is nothing to check.
    """
    row_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    positions = np.array([position for row in rows for position in row], dtype=np.int64)
    num_pairs = sum(len(row) * (len(row) - 1) // 2 for row in rows)
    if not num_pairs:
        return None
    weights = _weights([len(row) for row in rows])
    generator = np.random.default_rng(seed)
    random_distances = [
        _distance(row_of, generator.permutation(positions), weights) / num_pairs for _ in range(_NUM_PERMUTATIONS)
    ]
    return OrderCheck(
        num_pairs=num_pairs,
        mean_distance=_distance(row_of, positions, weights) / num_pairs,
        random_distance=float(np.mean(random_distances)),
        random_spread=float(np.std(random_distances, ddof=1)),
        seed=seed,
    )


def _weights(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Sorted values x_0 <= ... <= x_(m-1) have the sum of distances sum_k (2k - m + 1) x_k."""
    return np.concatenate([2 * np.arange(size, dtype=np.int64) - size + 1 for size in sizes])


def _distance(row_of: NDArray[np.int64], positions: NDArray[np.int64], weights: NDArray[np.int64]) -> float:
    """Sum of the distances within rows; one number to sort by, row first and position within it."""
    span = int(positions.max()) + 1
    in_order = np.sort(row_of * span + positions) - row_of * span
    return float((in_order * weights).sum())

"""A packed row is a forest of segments; this module holds the rule that follows from it.

A segment is a run of tokens with an optional parent segment. A sequence that would have been fed alone is a path from
a root to a leaf. A prompt ``a b`` with the responses ``c`` and ``d e`` in one row::

    slot        0  1  2  3  4
    token       a  b  c  d  e        segments: 0 = [a b], 1 = [c] with parent 0, 2 = [d e] with parent 0
    position    0  1  2  2  3        ``d`` is the third token of its own path, not the fourth of the row
    predictor   -  0  1  1  3        ``d`` is predicted from ``b``, not from its neighbour ``c``

Shape letters: T slots of a row, S segments of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Segment(NamedTuple):
    """A run of consecutive slots of a row.

    Args:
        start: First slot of the run.
        length: Number of slots, at least one.
        parent: Index of the segment that this one continues, or None for a root.
    """

    start: int
    length: int
    parent: int | None = None

    @property
    def stop(self) -> int:
        """The slot after the last one."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Forest:
    """The segments of one row, in row order, without gaps, every parent before its children.

    Args:
        segments: The segments; together they cover slots 0 to T - 1, each slot once.

    Raises:
        ValueError: No segment, an empty one, a gap or an overlap, or a parent that does not come before its child.
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if not self.segments:
            raise ValueError("a forest needs at least one segment, got none")
        expected_start = 0
        for index, (start, length, parent) in enumerate(self.segments):
            if length < 1:
                raise ValueError(f"segment {index} has length {length}: a segment holds at least one token")
            if start != expected_start:
                raise ValueError(f"segment {index} starts at slot {start}: expected slot {expected_start}")
            if parent is not None and not 0 <= parent < index:
                raise ValueError(
                    f"segment {index} has parent {parent}: a parent comes before its child, which rules "
                    f"cycles out; {f'expected one of 0 to {index - 1}' if index else 'the first segment has none'}"
                )
            expected_start += length

    @classmethod
    def of(cls, lengths: Sequence[int], parents: Sequence[int | None]) -> Forest:
        """Lay segments out one after the other.

        Args:
            lengths: Length of each segment.
            parents: Index of the parent of each segment, or None.

        Returns:
            The forest.

        Raises:
            ValueError: As for the constructor, or sequences of different lengths.
        """
        *starts, _ = accumulate(lengths, initial=0)
        return cls(tuple(map(Segment._make, zip(starts, lengths, parents, strict=True))))

    @property
    def num_slots(self) -> int:
        """T, the number of slots of the row."""
        return self.segments[-1].stop

    def path(self, index: int) -> tuple[int, ...]:
        """Indices of the segments from the root down to segment ``index``, itself included."""
        path = [index]
        while (parent := self.segments[path[-1]].parent) is not None:
            path.append(parent)
        return tuple(reversed(path))


def padded(forest: Forest, num_slots: int) -> Forest:
    """Fill a row up with padding: one more root, which sees only itself and which nothing sees.

    Args:
        forest: The row.
        num_slots: Number of slots wanted.

    Returns:
        The forest itself when it already has that many slots, otherwise one with a root more.

    Raises:
        ValueError: The row is longer than that.
    """
    missing = num_slots - forest.num_slots
    if missing < 0:
        raise ValueError(f"cannot pad a row of {forest.num_slots} slots to {num_slots}")
    return Forest((*forest.segments, Segment(forest.num_slots, missing))) if missing else forest


def segment_ids(forest: Forest) -> Tensor:
    """Index of the segment that holds each slot; int64, [T]."""
    lengths = torch.tensor([segment.length for segment in forest.segments])
    return torch.repeat_interleave(torch.arange(len(forest.segments)), lengths, output_size=forest.num_slots)


def visible_segments(forest: Forest) -> Tensor:
    """Which segments a segment sees: itself and its ancestors; bool, [S query, S key]."""
    visible = torch.eye(len(forest.segments), dtype=torch.bool)
    for index, segment in enumerate(forest.segments):
        if segment.parent is not None:
            visible[index] |= visible[segment.parent]
    return visible


def attention_rule(forest: Forest, window: int | None = None) -> Tensor:
    """Which slot attends to which: its own segment and its ancestors, never a later slot, and none out of the window.

    A parent lies before its children in the row, so "later" may be read off the slot numbers. Distances may not: in
    ``a b | c | d e`` the path of ``d`` goes on from ``b``, so that a window of 2 shows ``b`` to it, two slots away.

    Args:
        forest: The row.
        window: How many tokens of its path a slot sees at most, itself included; None for all up to itself.

    Returns:
        bool, [T query, T key].
    """
    ids_T = segment_ids(forest)
    rule = visible_segments(forest)[ids_T[:, None], ids_T[None, :]].tril()
    if window is None:
        return rule
    positions_T = positions(forest)
    return rule & (positions_T[:, None] - positions_T[None, :] < window)


def positions(forest: Forest) -> Tensor:
    """Number of tokens before each slot on its own path; int64, [T]."""
    after: list[int] = []  # by segment, the position that follows its last slot
    behind: list[int] = []  # by segment, how far its positions are behind its slots
    lengths: list[int] = []
    for start, length, parent in forest.segments:
        first = 0 if parent is None else after[parent]
        after.append(first + length)
        behind.append(start - first)
        lengths.append(length)
    return torch.from_numpy(np.arange(forest.num_slots) - np.repeat(behind, lengths))


def predictor_slots(forest: Forest) -> Tensor:
    """The slot that predicts each slot: its predecessor on its path, -1 for the first token of a root; int64, [T]."""
    slots_T = np.arange(-1, forest.num_slots - 1)
    last = [start + length - 1 for start, length, _ in forest.segments]
    slots_T[[start for start, _, _ in forest.segments]] = [
        -1 if parent is None else last[parent] for _, _, parent in forest.segments
    ]
    return torch.from_numpy(slots_T)


def predictors(forest: Forest) -> tuple[int | None, ...]:
    """`predictor_slots` as plain numbers, None for the first token of a root; [T]."""
    return tuple(None if slot < 0 else slot for slot in predictor_slots(forest).tolist())

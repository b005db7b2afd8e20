"""The prefix tree of any set of sequences: each shared run of first tokens is stored once.

The sequences ``a b c``, ``a b d``, ``a b`` and ``e`` in one row::

    slot        0  1  2  3  4
    token       a  b  c  d  e        segments: 0 = [a b], 1 = [c] with parent 0, 2 = [d] with parent 0, 3 = [e]

A segment ends where sequences part, not where one of them ends: the sequence ``a b`` adds no slot and no segment, and
``a b c`` beside ``a b c d`` is one segment of four. Nor does it end where a prompt does: a prompt and its only response
are one segment.

Segments come depth first, children in the order in which they first appear. So a parent stands before its children,
a segment and all that descend from it lie together, and the same sequences always give the same row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from packed_impl.forest import Forest

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixForest:
    """One row that holds every sequence as a path from a root.

    Args:
        forest: The segments.
        segment_tokens: The tokens of each segment.
        paths: Indices of the segments that hold each sequence, root first; the last may reach beyond its end.
        lengths: Number of tokens of each sequence.
    """

    forest: Forest
    segment_tokens: tuple[TokenIds, ...]
    paths: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]

    @property
    def token_ids(self) -> TokenIds:
        """The token in each slot."""
        return tuple(chain.from_iterable(self.segment_tokens))

    def slot_runs(self, sequence: int, first: int = 0) -> list[tuple[int, int]]:
        """Where the tokens of a sequence are.

        Args:
            sequence: Index of the sequence.
            first: Token of the sequence to start at.

        Returns:
            First slot and length of each run, in the order of the tokens.
        """
        runs: list[tuple[int, int]] = []
        left, end = first, self.lengths[sequence]
        for index in self.paths[sequence]:
            start, length, _ = self.forest.segments[index]
            stop = length if length < end else end
            if left < stop:
                runs.append((start + left, stop - left))
            left = left - length if left > length else 0
            end -= length
        return runs


class _Node:
    """A segment while the tree grows: tokens ``start`` to ``stop`` of a sequence through it, and what follows them.

    Any sequence that runs through it would do, because all of them are equal up to ``stop``.
    """

    __slots__ = ("children", "ids", "index", "parent", "start", "stop")

    def __init__(self, ids: TokenIds, start: int, stop: int, children: dict[int, _Node]) -> None:
        self.ids, self.start, self.stop, self.children = ids, start, stop, children
        self.index = -1
        self.parent: int | None = None  # in the row, once all sequences are in the tree

    def split(self, length: int) -> None:
        """Keep the first ``length`` tokens, and hand the others on to a child."""
        middle = self.start + length
        self.children = {self.ids[middle]: _Node(self.ids, middle, self.stop, self.children)}
        self.stop = middle


def prefix_forest(sequences: Sequence[TokenIds]) -> PrefixForest:
    """Lay sequences out as the radix tree of their prefixes.

    Args:
        sequences: The token ids of each sequence. They may be equal, or prefixes of one another.

    Returns:
        The row; it has one slot for each distinct prefix.

    Raises:
        ValueError: No sequence, or an empty one.
    """
    if not sequences:
        raise ValueError("no sequence for a prefix tree: at least one is needed")
    roots: dict[int, _Node] = {}
    for number, ids in enumerate(sequences):
        if not ids:
            raise ValueError(f"sequence {number} is empty: a prefix tree holds sequences of at least one token")
        _insert(roots, ids)
    nodes = _depth_first(roots)
    return PrefixForest(
        forest=Forest.of([node.stop - node.start for node in nodes], [node.parent for node in nodes]),
        segment_tokens=tuple([node.ids[node.start : node.stop] for node in nodes]),
        paths=tuple(_path(roots, ids) for ids in sequences),
        lengths=tuple(map(len, sequences)),
    )


def num_prefix_slots(sequences: Sequence[TokenIds]) -> int:
    """Number of slots of the prefix tree of some sequences, without building it.

    In sorted order a sequence shares with the tree of those before it what it shares with its neighbour. The slots of
    several groups together are at most the sum of those of each, so that rows filled by that sum never overflow. To
    count what groups of one prompt share as well, count them together and give them one place among the rows.

    Args:
        sequences: The token ids of each sequence.

    Returns:
        Number of distinct non-empty prefixes.
    """
    ordered = sorted(sequences)
    shared = sum(_num_shared(a, 0, b, 0, min(len(a), len(b))) for a, b in pairwise(ordered))
    return sum(map(len, ordered)) - shared


def _insert(roots: dict[int, _Node], ids: TokenIds) -> None:
    children, at = roots, 0
    while at < len(ids):
        node = children.get(ids[at])
        if node is None:
            children[ids[at]] = _Node(ids, at, len(ids), {})
            return
        length, left = node.stop - node.start, len(ids) - at
        shared = _num_shared(node.ids, node.start, ids, at, length if length < left else left)
        at += shared
        if at == len(ids):
            return
        if shared < length:
            node.split(shared)
        elif not node.children:
            node.ids, node.stop = ids, len(ids)  # what ended here goes on: still nothing parts
            return
        children = node.children


def _num_shared(a: TokenIds, a_start: int, b: TokenIds, b_start: int, most: int) -> int:
    """How many of the next ``most`` tokens are equal, from the first on; slices are compared, many tokens a step."""
    if a[a_start : a_start + most] == b[b_start : b_start + most]:
        return most
    equal, unequal = 0, most
    while unequal - equal > 1:
        middle = (equal + unequal) // 2
        if a[a_start + equal : a_start + middle] == b[b_start + equal : b_start + middle]:
            equal = middle
        else:
            unequal = middle
    return equal


def _depth_first(roots: dict[int, _Node]) -> list[_Node]:
    """All nodes, numbered. No recursion: a tree may be thousands of segments deep."""
    nodes: list[_Node] = []
    waiting = list(reversed(roots.values()))
    while waiting:
        node = waiting.pop()
        node.index = len(nodes)
        nodes.append(node)
        if node.children:
            for child in node.children.values():
                child.parent = node.index
            waiting.extend(reversed(node.children.values()))
    return nodes


def _path(roots: dict[int, _Node], ids: TokenIds) -> tuple[int, ...]:
    path: list[int] = []
    children, at = roots, 0
    while at < len(ids):
        node = children[ids[at]]
        path.append(node.index)
        at += node.stop - node.start
        children = node.children
    return tuple(path)

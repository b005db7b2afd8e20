"""Packed rows as the stages of a faulty computation hand them on: pieces of token ids, easy to rearrange.

Shape letters: B rows, T slots of a row, C completion tokens of all groups together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.groups import TokenIds
from verify.images import Image


@dataclass(frozen=True, slots=True)
class Held:
    """Consecutive tokens of a completion, as a piece holds them. Counted from the end: what is put in front moves none.

    Args:
        completion: The completion, in completion order.
        supervised: For each of the tokens whether a loss counts it; at least one token.
        num_behind: Tokens of the piece behind them.
    """

    completion: int
    supervised: tuple[bool, ...]
    num_behind: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens of one segment of a row.

    The sequences ``p a b`` and ``p a b c`` of a prefix tree are one piece, which holds two completions::

        ids   p a b c      held   completion 0: two tokens, one behind them; completion 1: three tokens

    Args:
        ids: Token ids; at least one.
        parent: Index, in the same row, of the piece that this one continues, or None.
        held: What it holds of completions; of each at most one run. Nothing for a prompt or padding.
        is_padding: Whether the piece fills the row up.
        features: For each token the number of the image feature that takes its place, -1 for none; ``()`` where none
            of them is a placeholder.
    """

    ids: TokenIds
    parent: int | None
    held: tuple[Held, ...] = ()
    is_padding: bool = False
    features: tuple[int, ...] = ()

    @property
    def completion(self) -> int | None:
        """The completion that it holds, the first where it holds several; None for a prompt or padding."""
        return self.held[0].completion if self.held else None


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of a row and the slots it takes."""

    row: int
    index: int
    start: int
    piece: Piece

    @property
    def stop(self) -> int:
        """The slot after the last one."""
        return self.start + len(self.piece.ids)


@dataclass(frozen=True, slots=True)
class Branch(Place):
    """A piece, with regard to one of the completions that it holds."""

    held: Held

    @property
    def completion(self) -> int:
        """The completion, in completion order."""
        return self.held.completion

    @property
    def tokens(self) -> range:
        """The slots of the completion's tokens."""
        stop = self.stop - self.held.num_behind
        return range(stop - len(self.held.supervised), stop)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of equal length, each a sequence of pieces without gaps.

    Args:
        rows: The pieces of each row.
        images: The images of all prompts, each distinct one once.
        per_image: Features of each; feature j of image i has the number ``i * per_image + j``.

    Raises:
        ValueError: No row, an empty piece, or rows of different lengths.
    """

    rows: tuple[tuple[Piece, ...], ...]
    images: tuple[Image, ...] = ()
    per_image: int = 0

    def __post_init__(self) -> None:
        lengths = {sum(len(piece.ids) for piece in row) for row in self.rows}
        if len(lengths) != 1 or not all(piece.ids for row in self.rows for piece in row):
            raise ValueError(
                f"rows of {sorted(lengths)} slots: rows of one length made of pieces with tokens are needed"
            )

    @property
    def num_slots(self) -> int:
        """T, the number of slots of every row."""
        return sum(len(piece.ids) for piece in self.rows[0])

    @property
    def input_ids(self) -> Tensor:
        """int64, [B, T]."""
        return torch.tensor([[token for piece in row for token in piece.ids] for row in self.rows])

    @property
    def features(self) -> Tensor:
        """Number of the image feature in each slot, -1 where there is none; int64, [B, T]."""
        return torch.tensor([[f for p in row for f in p.features or (-1,) * len(p.ids)] for row in self.rows])

    @property
    def segment_ids(self) -> Tensor:
        """Index of the piece that holds each slot, in its row; int64, [B, T]."""
        return torch.tensor([[i for i, piece in enumerate(row) for _ in piece.ids] for row in self.rows])

    @property
    def tree_ids(self) -> Tensor:
        """Index of the root piece above each slot, in its row; int64, [B, T]."""
        return torch.tensor([[root_of(row, i) for i, piece in enumerate(row) for _ in piece.ids] for row in self.rows])

    @property
    def padding(self) -> Tensor:
        """Whether a slot is padding; bool, [B, T]."""
        return torch.tensor([[piece.is_padding for piece in row for _ in piece.ids] for row in self.rows])

    def places(self) -> Iterator[Place]:
        """Every piece with its slots, row by row."""
        for number, row in enumerate(self.rows):
            start = 0
            for index, piece in enumerate(row):
                yield Place(number, index, start, piece)
                start += len(piece.ids)

    def branches(self) -> list[Branch]:
        """What holds completion tokens, in completion order, and of each completion in the order of its tokens.

        One for each completion, but in prefix trees, where a completion may go through several pieces.
        """
        found = [
            Branch(place.row, place.index, place.start, place.piece, held)
            for place in self.places()
            for held in place.piece.held
        ]
        return sorted(found, key=lambda branch: branch.completion)  # stable: parents stand before their children

    def ancestors_of(self, place: Place) -> tuple[Place, ...]:
        """The pieces above one, root first; empty for a root."""
        of_row = [other for other in self.places() if other.row == place.row]
        path, parent = [], place.piece.parent
        while parent is not None:
            path.append(of_row[parent])
            parent = of_row[parent].piece.parent
        return tuple(reversed(path))


def root_of(row: tuple[Piece, ...], index: int) -> int:
    """Index of the root above a piece."""
    parent = row[index].parent
    return index if parent is None else root_of(row, parent)


def padded(rows: list[list[Piece]], pad_token_id: int = 0) -> Rows:
    """Rows of one length, filled up with padding behind.

    Args:
        rows: The pieces of each row; an earlier padding piece at the end grows.
        pad_token_id: Token id of padding slots.

    Returns:
        The rows.
    """
    longest = max(sum(len(piece.ids) for piece in row) for row in rows)
    filled = []
    for row in rows:
        missing = longest - sum(len(piece.ids) for piece in row)
        filled.append((*row, Piece((pad_token_id,) * missing, None, is_padding=True)) if missing else tuple(row))
    return Rows(tuple(filled))

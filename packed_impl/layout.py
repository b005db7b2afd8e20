"""Preference groups laid out in packed rows, with an explicit map from each completion token to its predictor.

Shape letters: B rows, T slots of a row, C completion tokens of all groups together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from packed_impl.forest import Forest, padded, positions, predictors

LAYOUTS = ("shared-prompt", "repeat-prompt-token")
ROWS = ("one-row", "row-per-group")


class Group(Protocol):
    """One prompt with m preferred and n rejected responses, as token ids."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt; at least one token, because the first response token needs a predictor."""
        ...

    @property
    def positives(self) -> tuple[tuple[int, ...], ...]:
        """The preferred responses; at least one."""
        ...

    @property
    def negatives(self) -> tuple[tuple[int, ...], ...]:
        """The rejected responses; may be empty."""
        ...


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """Packed rows and where their completion tokens are.

    The three maps run over all completion tokens in the order used everywhere: group by group, positives before
    negatives, first token first. Nothing is shifted by one: the predictor of a token is named.

    Args:
        input_ids: int64, [B, T].
        position_ids: Number of tokens before each slot on its own path; int64, [B, T].
        forests: The segments of each row, padding included.
        token_rows: The row of each completion token; int64, [C].
        token_slots: The slot that holds it; int64, [C].
        predictor_slots: The slot, in the same row, whose output predicts it; int64, [C].
        completion_lengths: Number of tokens of each completion; they add up to C.
    """

    input_ids: Tensor
    position_ids: Tensor
    forests: tuple[Forest, ...]
    token_rows: Tensor
    token_slots: Tensor
    predictor_slots: Tensor
    completion_lengths: tuple[int, ...]

    @property
    def token_ids(self) -> Tensor:
        """The completion tokens themselves; int64, [C]."""
        return self.input_ids[self.token_rows, self.token_slots]


@dataclass(frozen=True, slots=True)
class _Piece:
    """The tokens of one segment; the last ``num_completion_tokens`` of them belong to a completion."""

    ids: tuple[int, ...]
    parent: int | None
    num_completion_tokens: int = 0


def _tree(group: Group, layout: str, first_index: int) -> list[_Piece]:
    """The segments of one group, the first of which has the given index in its row: prompt, then every response.

    "repeat-prompt-token" is the same tree split one token earlier. A prompt ``a b`` with responses ``c`` and ``d``
    becomes ``a`` -> ``b c``, ``b d``; the one-token prompt ``b`` leaves no root, so ``b c`` and ``b d`` are roots.
    """
    split = len(group.prompt_ids) - (layout == "repeat-prompt-token")
    root, repeated = group.prompt_ids[:split], group.prompt_ids[split:]
    pieces = [_Piece(root, None)] if root else []
    parent = first_index if root else None
    responses = (*group.positives, *group.negatives)
    return pieces + [_Piece((*repeated, *response), parent, len(response)) for response in responses]


def _check_groups(groups: Sequence[Group]) -> None:
    if not groups:
        raise ValueError("no group to pack: at least one is needed")
    for index, group in enumerate(groups):
        if not group.prompt_ids:
            raise ValueError(f"group {index} has an empty prompt: the first response token needs a predictor")
        if not group.positives:
            raise ValueError(f"group {index} has no positive response: at least one is needed")
        for name, responses in (("positives", group.positives), ("negatives", group.negatives)):
            for place, response in enumerate(responses):
                if not response:
                    raise ValueError(
                        f"group {index} has an empty response {name}[{place}]: at least one token is needed"
                    )


def pack(
    groups: Sequence[Group], *, layout: str = "shared-prompt", rows: str = "one-row", pad_token_id: int = 0
) -> PackedLayout:
    """Lay preference groups out in packed rows.

    Args:
        groups: Any number of groups with any number of responses.
        layout: "shared-prompt": the prompt is a root and every response a child of it. "repeat-prompt-token": the
            root lacks the last prompt token and every child starts with it, so that a branch holds its own
            predictors (the layout of dpo-prefix-sharing, https://arxiv.org/abs/2410.20305).
        rows: "one-row": all groups side by side in one row, as separate trees. "row-per-group": a row for each
            group, padded to the longest.
        pad_token_id: Token id of padding slots; no supervised token sees one.

    Returns:
        The layout; its tensors are on the CPU.

    Raises:
        ValueError: No group, an empty prompt or response, no positive, or an unknown ``layout`` or ``rows``.
    """
    for name, value, known in (("layout", layout, LAYOUTS), ("rows", rows, ROWS)):
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}: expected one of {', '.join(known)}")
    _check_groups(groups)

    row_pieces: list[list[_Piece]] = []
    for group in groups:
        if rows == "row-per-group" or not row_pieces:
            row_pieces.append([])
        row_pieces[-1].extend(_tree(group, layout, first_index=len(row_pieces[-1])))

    row_forests = [Forest.of([len(piece.ids) for piece in row], [piece.parent for piece in row]) for row in row_pieces]
    num_slots = max(forest.num_slots for forest in row_forests)
    forests = tuple(padded(forest, num_slots) for forest in row_forests)
    input_ids = torch.full((len(forests), num_slots), pad_token_id)
    for index, row in enumerate(row_pieces):
        ids = [token for piece in row for token in piece.ids]
        input_ids[index, : len(ids)] = torch.tensor(ids)
    token_rows, token_slots, predictor_slots = torch.tensor(_completion_map(row_pieces, row_forests)).unbind(1)
    return PackedLayout(
        input_ids=input_ids,
        position_ids=torch.stack([positions(forest) for forest in forests]),
        forests=forests,
        token_rows=token_rows,
        token_slots=token_slots,
        predictor_slots=predictor_slots,
        completion_lengths=tuple(
            piece.num_completion_tokens for row in row_pieces for piece in row if piece.num_completion_tokens
        ),
    )


def _completion_map(rows: Sequence[Sequence[_Piece]], forests: Sequence[Forest]) -> list[tuple[int, int, int]]:
    """(row, slot, predictor slot) of every completion token; segments are in the standard order already."""
    result = []
    for index, (row, forest) in enumerate(zip(rows, forests, strict=True)):
        predictor_of = predictors(forest)
        for piece, segment in zip(row, forest.segments, strict=True):
            for slot in range(segment.stop - piece.num_completion_tokens, segment.stop):
                predictor = predictor_of[slot]
                if predictor is None:
                    raise ValueError(f"slot {slot} of row {index} holds a completion token but has no predictor")
                result.append((index, slot, predictor))
    return result

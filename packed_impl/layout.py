"""Preference groups laid out in packed rows, with an explicit map from each completion token to its predictor.

Shape letters: B rows, T slots of a row, K completions and C completion tokens of all groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from packed_impl.forest import Forest, padded, positions, predictor_slots

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
class _Row:
    """One row before padding.

    Args:
        forest: Its segments.
        ids: Its tokens, in runs.
        completion_starts: Index of each group in the row, and the first slot of each of its completions.
    """

    forest: Forest
    ids: list[tuple[int, ...]]
    completion_starts: dict[int, list[int]]


def _row(groups: Sequence[Group], indices: Sequence[int], layout: str) -> _Row:
    """Lay the trees of some groups side by side: each a prompt, then every response.

    "repeat-prompt-token" is the same tree split one token earlier. A prompt ``a b`` with responses ``c`` and ``d``
    becomes ``a`` -> ``b c``, ``b d``; the one-token prompt ``b`` leaves no root, so ``b c`` and ``b d`` are roots.
    """
    lengths: list[int] = []
    parents: list[int | None] = []
    ids: list[tuple[int, ...]] = []
    starts: dict[int, list[int]] = {}
    slot = 0
    for index in indices:
        group = groups[index]
        split = len(group.prompt_ids) - (layout == "repeat-prompt-token")
        root, repeated = group.prompt_ids[:split], group.prompt_ids[split:]
        parent = None
        if root:
            parent = len(lengths)
            lengths.append(split)
            parents.append(None)
            ids.append(root)
            slot += split
        starts[index] = []
        for response in (*group.positives, *group.negatives):
            starts[index].append(slot + len(repeated))
            lengths.append(len(repeated) + len(response))
            parents.append(parent)
            ids += (repeated, response)
            slot += lengths[-1]
    return _Row(Forest.of(lengths, parents), ids, starts)


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


def _groups_of_rows(rows: str | Sequence[Sequence[int]], num_groups: int) -> Sequence[Sequence[int]]:
    """Which groups each row holds, checked: each group in exactly one row, and no row empty."""
    if isinstance(rows, str):
        if rows not in ROWS:
            raise ValueError(f"unknown rows {rows!r}: expected one of {', '.join(ROWS)}, or the groups of each row")
        return [range(num_groups)] if rows == "one-row" else [(index,) for index in range(num_groups)]
    row_of: dict[int, int] = {}
    for row, indices in enumerate(rows):
        if not indices:
            raise ValueError(f"row {row} holds no group: leave it out")
        for index in indices:
            if not 0 <= index < num_groups:
                raise ValueError(f"row {row} holds group {index}, but there are groups 0 to {num_groups - 1}")
            if index in row_of:
                raise ValueError(f"group {index} is in row {row_of[index]} and in row {row}: a group is packed once")
            row_of[index] = row
    if len(row_of) < num_groups:
        missing = next(index for index in range(num_groups) if index not in row_of)
        raise ValueError(f"group {missing} is in no row: every group has to be in one")
    return rows


def _row_length(forests: Sequence[Forest], row_length: int | None) -> int:
    longest = max(range(len(forests)), key=lambda row: forests[row].num_slots)
    num_slots = forests[longest].num_slots
    if row_length is None:
        return num_slots
    if num_slots > row_length:
        raise ValueError(
            f"row {longest} takes {num_slots} slots, more than the row length of {row_length}: rows are never cut"
        )
    return row_length


def pack(
    groups: Sequence[Group],
    *,
    layout: str = "shared-prompt",
    rows: str | Sequence[Sequence[int]] = "one-row",
    row_length: int | None = None,
    pad_token_id: int = 0,
) -> PackedLayout:
    """Lay preference groups out in packed rows.

    Args:
        groups: Any number of groups with any number of responses.
        layout: "shared-prompt": the prompt is a root and every response a child of it. "repeat-prompt-token": the
            root lacks the last prompt token and every child starts with it, so that a branch holds its own
            predictors (the layout of dpo-prefix-sharing, https://arxiv.org/abs/2410.20305).
        rows: "one-row": all groups side by side in one row, as separate trees. "row-per-group": a row for each
            group. Or the indices of the groups in each row, as `bins.first_fit_decreasing` gives them. The maps of
            the layout follow the order of ``groups`` whichever row a group is in.
        row_length: Slots of every row; None for those of the longest. Shorter rows are padded.
        pad_token_id: Token id of padding slots; no supervised token sees one.

    Returns:
        The layout; its tensors are on the CPU.

    Raises:
        ValueError: No group, an empty prompt or response, no positive, an unknown ``layout`` or ``rows``, a group in
            no row or in two, or a row longer than ``row_length``.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    _check_groups(groups)
    packed_rows = [_row(groups, indices, layout) for indices in _groups_of_rows(rows, len(groups))]
    num_slots = _row_length([row.forest for row in packed_rows], row_length)
    forests = tuple(padded(row.forest, num_slots) for row in packed_rows)

    input_ids = torch.full((len(forests), num_slots), pad_token_id)
    for ids_T, row in zip(input_ids, packed_rows, strict=True):
        tokens = np.fromiter(chain.from_iterable(row.ids), np.int64, row.forest.num_slots)
        ids_T[: len(tokens)] = torch.from_numpy(tokens)

    lengths = [len(response) for group in groups for response in (*group.positives, *group.negatives)]
    token_rows, token_slots = _completion_slots(packed_rows, lengths, len(groups))
    predicted_from = torch.stack([predictor_slots(forest) for forest in forests])[token_rows, token_slots]
    if (without := (predicted_from < 0).nonzero()).numel():
        row_index, slot = int(token_rows[without[0, 0]]), int(token_slots[without[0, 0]])
        raise ValueError(f"slot {slot} of row {row_index} holds a completion token but has no predictor")
    return PackedLayout(
        input_ids=input_ids,
        position_ids=torch.stack([positions(forest) for forest in forests]),
        forests=forests,
        token_rows=token_rows,
        token_slots=token_slots,
        predictor_slots=predicted_from,
        completion_lengths=tuple(lengths),
    )


def _completion_slots(rows: Sequence[_Row], lengths: Sequence[int], num_groups: int) -> tuple[Tensor, Tensor]:
    """Row and slot of every completion token, group by group, whichever row a group is in; int64, [C] each."""
    starts_of_group: list[tuple[int, list[int]]] = [(0, [])] * num_groups
    for row_index, row in enumerate(rows):
        for group_index, starts in row.completion_starts.items():
            starts_of_group[group_index] = row_index, starts
    rows_K = torch.tensor([row_index for row_index, starts in starts_of_group for _ in starts])
    starts_K = torch.tensor([start for _, starts in starts_of_group for start in starts])
    lengths_K = torch.tensor(lengths)
    # A run of token numbers a, a + 1, ... becomes start, start + 1, ... once start - a is added.
    ahead_K = starts_K - (lengths_K.cumsum(0) - lengths_K)
    slots_C = torch.arange(sum(lengths)) + torch.repeat_interleave(ahead_K, lengths_K)
    return torch.repeat_interleave(rows_K, lengths_K), slots_C

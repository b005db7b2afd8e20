"""Tokens of a case by id: how a slot is known, whatever the layout that put it there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from verify.groups import PreferenceGroup, TokenIds


@dataclass(frozen=True, slots=True)
class CaseToken:
    """One token of a case. Where several completions begin alike, it is named by the first that holds it.

    Args:
        group: Its group.
        completion: Index within the group, positives before negatives; None for a prompt token.
        index: Place within its prompt or completion, from 0.
        path: Number of tokens before it on its path.
    """

    group: int
    completion: int | None
    index: int
    path: int


def sequences(groups: Sequence[PreferenceGroup]) -> Iterator[tuple[int, int, TokenIds]]:
    """Group, number within it, and prompt and completion as one, of every completion in completion order."""
    for g, group in enumerate(groups):
        for c, ids in enumerate(group.completions):
            yield g, c, (*group.prompt_ids, *ids)


def path_numbers(groups: Sequence[PreferenceGroup]) -> list[list[int]]:
    """Which tokens are one and the same: those with the same tokens before them have one number.

    The sequences ``p a b`` and ``p a c`` are numbered 0 1 2 and 0 1 3: packed or not, ``a`` is one computation.

    Args:
        groups: The groups of a case.

    Returns:
        For every completion the numbers of its prompt's and its own tokens.
    """
    numbers: dict[tuple[int, int], int] = {}
    found = []
    for _, _, ids in sequences(groups):
        path = [-1]
        for token in ids:
            path.append(numbers.setdefault((path[-1], token), len(numbers)))
        found.append(path[1:])
    return found


def shared_tokens(groups: Sequence[PreferenceGroup]) -> frozenset[int]:
    """Numbers of the completion tokens, as in :func:`path_numbers`, that several completions share."""
    own = [path[-len(ids) :] for path, ids in zip(path_numbers(groups), _completions(groups), strict=True)]
    return frozenset(number for number, count in Counter(chain.from_iterable(own)).items() if count > 1)


def _completions(groups: Sequence[PreferenceGroup]) -> list[TokenIds]:
    return [ids for group in groups for ids in group.completions]


def completion_tokens(groups: Sequence[PreferenceGroup]) -> list[list[CaseToken]]:
    """The tokens of every completion, each named by its own completion."""
    return [
        [CaseToken(g, c, i, len(group.prompt_ids) + i) for i in range(len(ids))]
        for g, group in enumerate(groups)
        for c, ids in enumerate(group.completions)
    ]


def tracked_tokens(groups: Sequence[PreferenceGroup]) -> Mapping[int, CaseToken]:
    """The tokens of a case that are known by their id: wherever it occurs in the case, it is one and the same token.

    Args:
        groups: The groups of the case.

    Returns:
        Token id to token; all tokens where no id occurs behind two different prefixes.
    """
    places: dict[int, CaseToken] = {}
    numbers_of: dict[int, set[int]] = {}
    for (g, c, ids), numbers in zip(sequences(groups), path_numbers(groups), strict=True):
        num_prompt = len(groups[g].prompt_ids)
        for path, (token, number) in enumerate(zip(ids, numbers, strict=True)):
            numbers_of.setdefault(token, set()).add(number)
            place = CaseToken(g, None, path, path) if path < num_prompt else CaseToken(g, c, path - num_prompt, path)
            places.setdefault(number, place)
    return {token: places[min(numbers)] for token, numbers in numbers_of.items() if len(numbers) == 1}


def path_ids(token: CaseToken, groups: Sequence[PreferenceGroup]) -> TokenIds:
    """What a token may attend to: the ids on its path, its own last."""
    group = groups[token.group]
    own = () if token.completion is None else group.completions[token.completion]
    return (*group.prompt_ids, *own)[: token.path + 1]


def on_all_tokens(supervised: Sequence[Tensor], groups: Sequence[PreferenceGroup]) -> tuple[Tensor, ...]:
    """Values of supervised tokens on vectors over all completion tokens, with zeros at the others."""
    places = [of_completion for group in groups for of_completion in group.supervised]
    lengths = map(len, _completions(groups))
    return tuple(
        values.new_zeros(length).index_copy(0, torch.tensor(at), values)
        for values, at, length in zip(supervised, places, lengths, strict=True)
    )


def describe(tokens: Sequence[CaseToken], groups: Sequence[PreferenceGroup]) -> str:
    """Which tokens, in words: segment by segment, with a range where they do not cover it.

    Args:
        tokens: At least one.
        groups: The groups of the case.

    Returns:
        E.g. "tokens 1 to 8 of the rejected response of group 0, 3 of the prompt of group 1".
    """
    by_segment: dict[tuple[int, int], list[int]] = {}
    for token in sorted(tokens, key=lambda t: (t.group, -1 if t.completion is None else t.completion, t.index)):
        by_segment.setdefault((token.group, -1 if token.completion is None else token.completion), []).append(
            token.index
        )
    parts = [_segment(g, c, indices, groups[g]) for (g, c), indices in by_segment.items()]
    shown = "; ".join(parts[:3])
    return shown + (f"; and in {len(parts) - 3} more segments" if len(parts) > 3 else "")


def segment_name(group: int, completion: int | None, of: PreferenceGroup) -> str:
    """A prompt or response in words."""
    if completion is None:
        return f"the prompt of group {group}"
    if len(of.positives) == 1 and completion < 2:
        return f"the {('chosen', 'rejected')[completion]} response of group {group}"
    kind, number = ("positive", completion) if completion < len(of.positives) else (
        "negative", completion - len(of.positives)
    )  # fmt: skip
    return f"{kind} {number} of group {group}"


def _segment(g: int, c: int, indices: list[int], group: PreferenceGroup) -> str:
    name = segment_name(g, None if c < 0 else c, group)
    length = len(group.prompt_ids if c < 0 else group.completions[c])
    first, last = indices[0], indices[-1]
    if len(indices) == length > 1:
        return f"all of {name}"
    if len(indices) == 1:
        return f"token {first} of {name}"
    if len(indices) == last - first + 1:
        return f"tokens {first} to {last} of {name}"
    return f"{len(indices)} tokens from {first} to {last} of {name}"

"""Tokens of a case by meaning: which group, which part, which place in it.

In the cases of distinct tokens an id says which token it is: it occurs twice only where everything before it is shared,
and there a packed row may hold it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.groups import PreferenceGroup, TokenIds
from verify.places import completion_name


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """One token of a case.

    Args:
        group: Index of the group.
        completion: Index of the completion within its group; None for the prompt.
        index: Place within prompt or completion.
    """

    group: int
    completion: int | None
    index: int

    def words(self, groups: Sequence[PreferenceGroup]) -> str:
        """E.g. "group 0, chosen, token 2"."""
        if self.completion is None:
            return f"group {self.group}, prompt, token {self.index}"
        return f"{completion_words(groups, self.group, self.completion)}, token {self.index}"


def ids_before(groups: Sequence[PreferenceGroup], token: TokenPlace) -> frozenset[int]:
    """Ids of all tokens before a completion token on its own path: its prompt, then its own completion."""
    group = groups[token.group]
    if token.completion is None:
        raise ValueError(f"{token.words(groups)} is no completion token")
    return frozenset(group.prompt_ids + group.completions[token.completion][: token.index])


def completion_words(groups: Sequence[PreferenceGroup], group: int, completion: int) -> str:
    """E.g. "group 0, chosen"."""
    return f"group {group}, {completion_name(completion, len(groups[group].positives))}"


def all_places(groups: Sequence[PreferenceGroup]) -> list[tuple[TokenPlace, int]]:
    """Every token of a case with its id: prompts and completions, group by group."""
    places = []
    for g, group in enumerate(groups):
        parts: list[tuple[int | None, TokenIds]] = [(None, group.prompt_ids), *enumerate(group.completions)]
        places += [(TokenPlace(g, part, i), token) for part, ids in parts for i, token in enumerate(ids)]
    return places


def supervised_tokens(groups: Sequence[PreferenceGroup]) -> list[tuple[TokenPlace, int]]:
    """Every supervised token with its id, in completion order."""
    return [
        (TokenPlace(g, k, index), ids[index])
        for g, group in enumerate(groups)
        for k, (ids, supervised) in enumerate(zip(group.completions, group.supervised, strict=True))
        for index in supervised
    ]


def holders(groups: Sequence[PreferenceGroup]) -> dict[int, frozenset[tuple[int, int]]]:
    """For every token id the completions, as group and place in it, on whose path it is."""
    found: dict[int, set[tuple[int, int]]] = {}
    for g, group in enumerate(groups):
        for k, ids in enumerate(group.completions):
            for token in group.prompt_ids + ids:
                found.setdefault(token, set()).add((g, k))
    return {token: frozenset(completions) for token, completions in found.items()}

"""Tokens of a case by meaning: which group, which part, which place in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.comparison import completion_name
from verify.groups import PreferenceGroup, TokenIds


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
        name = completion_name(self.completion, len(groups[self.group].positives))
        return f"group {self.group}, {name}, token {self.index}"

    def is_on_path_before(self, token: TokenPlace) -> bool:
        """Whether this token comes before another on that one's own path: its prompt, then its own completion."""
        if self.group != token.group:
            return False
        return self.completion is None or (self.completion == token.completion and self.index < token.index)


def all_places(groups: Sequence[PreferenceGroup]) -> list[tuple[TokenPlace, int]]:
    """Every token of a case with its id: prompts and completions, group by group."""
    places = []
    for g, group in enumerate(groups):
        parts: list[tuple[int | None, TokenIds]] = [(None, group.prompt_ids), *enumerate(group.completions)]
        places += [(TokenPlace(g, part, i), token) for part, ids in parts for i, token in enumerate(ids)]
    return places


def completion_places(groups: Sequence[PreferenceGroup]) -> list[TokenPlace]:
    """Every completion token, in completion order."""
    return [place for place, _ in all_places(groups) if place.completion is not None]

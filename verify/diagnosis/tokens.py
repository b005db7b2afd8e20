"""Tokens of a case by id: how a slot is known, whatever the layout that put it there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verify.groups import PreferenceGroup


@dataclass(frozen=True, slots=True)
class CaseToken:
    """One token of a case.

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

    def sees(self, key: CaseToken) -> bool:
        """Whether it may attend to another token: on its own path and not later."""
        return (
            key.group == self.group
            and (key.completion is None or key.completion == self.completion)
            and key.path <= self.path
        )


def tracked_tokens(groups: Sequence[PreferenceGroup]) -> Mapping[int, CaseToken]:
    """The tokens of a case whose id occurs once in it, by id.

    Args:
        groups: The groups of the case.

    Returns:
        Token id to token; all tokens where no id occurs twice.
    """
    tokens = []
    for g, group in enumerate(groups):
        tokens += [(token, CaseToken(g, None, i, i)) for i, token in enumerate(group.prompt_ids)]
        for c, ids in enumerate(group.completions):
            tokens += [(token, CaseToken(g, c, i, len(group.prompt_ids) + i)) for i, token in enumerate(ids)]
    counts = Counter(token for token, _ in tokens)
    return {token: place for token, place in tokens if counts[token] == 1}


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

"""A case on a model, and the ways to make it smaller. Pure functions: each returns another candidate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds
from verify.models.request import ModelRequest

PROMPT = -1
SMALLEST_WIDTH = 8
SMALLEST_VOCABULARY = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of a case: the prompt of a group, or one of its completions.

    Args:
        group: Number of the group.
        part: ``PROMPT``, or number of the completion within its group.
    """

    group: int
    part: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one trial is about."""

    case: Case
    model: ModelRequest

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Prompt and completions of every group."""
        return tuple(
            Segment(g, part) for g, group in enumerate(self.case.groups) for part in range(-1, len(group.completions))
        )

    def tokens(self, segment: Segment) -> TokenIds:
        """The tokens of a segment."""
        group = self.case.groups[segment.group]
        return group.prompt_ids if segment.part == PROMPT else group.completions[segment.part]

    @property
    def size(self) -> dict[str, int]:
        """What shrinking makes smaller."""
        lengths = {segment: len(self.tokens(segment)) for segment in self.segments}
        size = {
            "groups": len(self.case.groups),
            "prompt tokens": sum(n for segment, n in lengths.items() if segment.part == PROMPT),
            "response tokens": sum(n for segment, n in lengths.items() if segment.part != PROMPT),
            "largest token id": max(max(self.tokens(segment)) for segment in self.segments),
        }
        if self.model.is_checkpoint:
            return size
        config = self.model.seeded_config
        return size | {
            "layers": self.model.num_layers or config.num_hidden_layers,
            "query heads": config.num_attention_heads,
            "key heads": config.num_key_value_heads,
            "head dimension": config.head_dim,
            "hidden size": config.hidden_size,
            "MLP size": config.intermediate_size,
            "vocabulary": config.vocab_size,
        }


def seeded(candidate: Candidate) -> Candidate:
    """The same, with the config of its model spelled out, so that it can be reduced."""
    model = candidate.model
    config = replace(
        model.seeded_config, num_hidden_layers=model.num_layers or model.seeded_config.num_hidden_layers,
        num_parameters=0,
    )  # fmt: skip
    return Candidate(candidate.case, replace(model, config=config, num_layers=None))


def without_groups(candidate: Candidate, start: int, count: int) -> Candidate:
    """Without ``count`` groups from ``start`` on."""
    groups = candidate.case.groups[:start] + candidate.case.groups[start + count :]
    return _with_groups(candidate, groups)


def edited(candidate: Candidate, segments: Collection[Segment], edit: Callable[[TokenIds], TokenIds]) -> Candidate:
    """With the tokens of some segments replaced by what ``edit`` makes of them."""

    def tokens(group: int, part: int) -> TokenIds:
        segment = Segment(group, part)
        return edit(candidate.tokens(segment)) if segment in segments else candidate.tokens(segment)

    groups = []
    for g, group in enumerate(candidate.case.groups):
        completions = tuple(tokens(g, part) for part in range(len(group.completions)))
        num_positives = len(group.positives)
        groups.append(
            PreferenceGroup(tokens(g, PROMPT), completions[:num_positives], completions[num_positives:], group.source)
        )
    return _with_groups(candidate, tuple(groups))


def first_tokens(count: int) -> Callable[[TokenIds], TokenIds]:
    """Keeps the first tokens."""
    return lambda ids: ids[:count]


def without_tokens(start: int, count: int) -> Callable[[TokenIds], TokenIds]:
    """Takes out ``count`` tokens from ``start`` on; from the end on if ``start`` is negative."""

    def edit(ids: TokenIds) -> TokenIds:
        first = start if start >= 0 else len(ids) - count
        return ids[:first] + ids[first + count :]

    return edit


def renumbered(candidate: Candidate) -> Candidate:
    """With token ids 0, 1, 2, ... in the order of the ids that occur; equal tokens stay equal."""
    occurring = sorted({token for segment in candidate.segments for token in candidate.tokens(segment)})
    rank = {token: number for number, token in enumerate(occurring)}
    return edited(candidate, candidate.segments, lambda ids: tuple(rank[token] for token in ids))


def with_config(candidate: Candidate, **changes: Any) -> Candidate:
    """With other values in its model's config, which must be spelled out."""
    assert candidate.model.config is not None
    return Candidate(candidate.case, replace(candidate.model, config=replace(candidate.model.config, **changes)))


def fewer_heads(candidate: Candidate) -> Iterator[Candidate]:
    """With fewer query heads, fewest first, and of those with fewer key heads first."""
    config = candidate.model.seeded_config
    now = (config.num_attention_heads, config.num_key_value_heads)
    for heads in powers_of_two(1, now[0] + 1):
        for kv_heads in powers_of_two(1, min(heads, now[1]) + 1):
            if (heads, kv_heads) != now:
                yield with_config(candidate, num_attention_heads=heads, num_key_value_heads=kv_heads)


def smaller_field(candidate: Candidate, field: str, smallest: int) -> Iterator[Candidate]:
    """With powers of two from ``smallest`` on in one field of the config, as long as they are smaller than it is."""
    now = getattr(candidate.model.seeded_config, field)
    for value in powers_of_two(smallest, now):
        yield with_config(candidate, **{field: value})


def smaller_vocabulary(candidate: Candidate) -> Iterator[Candidate]:
    """With the smallest vocabulary that holds every token of the case."""
    needed = max(SMALLEST_VOCABULARY, candidate.size["largest token id"] + 1)
    if needed < candidate.model.seeded_config.vocab_size:
        yield with_config(candidate, vocab_size=needed)


def powers_of_two(start: int, stop: int) -> Iterator[int]:
    """``start``, 2 ``start``, 4 ``start``, ... below ``stop``.

    >>> list(powers_of_two(1, 9))
    [1, 2, 4, 8]
    """
    while start < stop:
        yield start
        start *= 2


def _with_groups(candidate: Candidate, groups: tuple[PreferenceGroup, ...]) -> Candidate:
    return Candidate(replace(candidate.case, groups=groups), candidate.model)

"""A case on a model, and the ways to make it smaller. Pure functions: each returns another candidate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds
from verify.models.request import ModelRequest
from verify.objective import compares

PROMPT = -1
SMALLEST_WIDTH = 8
SMALLEST_VOCABULARY = 2

T = TypeVar("T")


class Edit(Protocol):
    """Cuts a tuple by place, whatever it holds."""

    def __call__(self, values: tuple[T, ...], /) -> tuple[T, ...]:
        """What is left."""
        ...


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
            "responses": self.case.num_completions,
            "prompt tokens": sum(n for segment, n in lengths.items() if segment.part == PROMPT),
            "response tokens": sum(n for segment, n in lengths.items() if segment.part != PROMPT),
            "tokens that are not supervised": sum(
                mask.count(False) for group in self.case.groups for mask in group.completion_masks
            ),
            "largest token id": max(max(self.tokens(segment)) for segment in self.segments),
        }
        if self.model.is_given_whole:
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


def without_response(candidate: Candidate, segment: Segment) -> Candidate | None:
    """Without one response; None where its objective needs it.

    Args:
        candidate: The candidate.
        segment: The response.
    """
    group, part = candidate.case.groups[segment.group], segment.part
    is_positive = part < len(group.positives)
    left = len(group.positives if is_positive else group.negatives) - 1
    if not left and (is_positive or compares(candidate.case.objective_name)):
        return None
    keep = [index for index in range(len(group.completions)) if index != part]
    return _with_group(candidate, segment.group, _rebuilt(
        group,
        group.prompt_ids,
        [group.completions[index] for index in keep],
        [group.completion_masks[index] for index in keep] if group.completion_masks else [],
        len(group.positives) - is_positive,
    ))  # fmt: skip


def without_masks(candidate: Candidate, group: int) -> Candidate:
    """With every response token of a group supervised."""
    return _with_group(candidate, group, replace(candidate.case.groups[group], completion_masks=()))


def edited(candidate: Candidate, segments: Collection[Segment], edit: Edit) -> Candidate:
    """With some segments cut; the masks of responses are cut along.

    Args:
        candidate: The candidate.
        segments: What is cut. A response that would be left without a supervised token stays as it is.
        edit: Cuts a tuple, of token ids or of the values of a mask.
    """
    groups = []
    for g, group in enumerate(candidate.case.groups):
        prompt = edit(group.prompt_ids) if Segment(g, PROMPT) in segments else group.prompt_ids
        completions, masks = list(group.completions), list(group.completion_masks)
        for part, ids in enumerate(group.completions):
            if Segment(g, part) not in segments:
                continue
            if not masks:
                completions[part] = edit(ids)
            elif any(mask := edit(masks[part])):
                completions[part], masks[part] = edit(ids), mask
        groups.append(_rebuilt(group, prompt, completions, masks, len(group.positives)))
    return _with_groups(candidate, tuple(groups))


def mapped(candidate: Candidate, segments: Collection[Segment], rename: Callable[[int], int]) -> Candidate:
    """With other token ids in some segments."""

    def tokens(group: int, part: int) -> TokenIds:
        ids = candidate.tokens(segment := Segment(group, part))
        return tuple(map(rename, ids)) if segment in segments else ids

    groups = []
    for g, group in enumerate(candidate.case.groups):
        completions = [tokens(g, part) for part in range(len(group.completions))]
        groups.append(_rebuilt(group, tokens(g, PROMPT), completions, group.completion_masks, len(group.positives)))
    return _with_groups(candidate, tuple(groups))


def sharing(candidate: Candidate, segment: Segment, count: int) -> frozenset[Segment]:
    """Segments that begin with the same tokens on the same path: what is cut from one must be cut from all to stay so.

    Args:
        candidate: The candidate.
        segment: A prompt or a response.
        count: Number of first tokens that must be the same.

    Returns:
        The segments, the given one among them.
    """
    first, prompt = candidate.tokens(segment)[:count], candidate.case.groups[segment.group].prompt_ids
    return frozenset(
        other
        for other in candidate.segments
        if (other.part == PROMPT) == (segment.part == PROMPT)
        and candidate.tokens(other)[:count] == first
        and (segment.part == PROMPT or candidate.case.groups[other.group].prompt_ids == prompt)
    )


def unshared(candidate: Candidate, segment: Segment) -> Candidate | None:
    """With other tokens in a segment that begins as an earlier one on the same path does.

    Args:
        candidate: The candidate.
        segment: A prompt or a response.

    Returns:
        The candidate with ids that occur nowhere else; None where no earlier segment begins alike, or the vocabulary
        has no more ids.
    """
    order = candidate.segments
    alike = sharing(candidate, segment, 1)
    if not any(order.index(other) < order.index(segment) for other in alike):
        return None
    fresh = candidate.size["largest token id"] + 1
    old = sorted(set(candidate.tokens(segment)))
    if not candidate.model.is_given_whole and fresh + len(old) > candidate.model.seeded_config.vocab_size:
        return None
    names = {token: fresh + number for number, token in enumerate(old)}
    return mapped(candidate, {segment}, names.__getitem__)


def first_tokens(count: int) -> Edit:
    """Keeps the first tokens."""

    def edit(values: tuple[T, ...]) -> tuple[T, ...]:
        return values[:count]

    return edit


def without_tokens(start: int, count: int) -> Edit:
    """Takes out ``count`` tokens from ``start`` on; from the end on if ``start`` is negative."""

    def edit(values: tuple[T, ...]) -> tuple[T, ...]:
        first = start if start >= 0 else len(values) - count
        return values[:first] + values[first + count :]

    return edit


def renumbered(candidate: Candidate) -> Candidate:
    """With token ids 0, 1, 2, ... in the order of the ids that occur; equal tokens stay equal."""
    occurring = sorted({token for segment in candidate.segments for token in candidate.tokens(segment)})
    rank = {token: number for number, token in enumerate(occurring)}
    return mapped(candidate, candidate.segments, rank.__getitem__)


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


def _rebuilt(
    group: PreferenceGroup,
    prompt_ids: TokenIds,
    completions: Sequence[TokenIds],
    masks: Sequence[tuple[bool, ...]],
    num_positives: int,
) -> PreferenceGroup:
    return PreferenceGroup(
        prompt_ids, tuple(completions[:num_positives]), tuple(completions[num_positives:]), group.source, tuple(masks)
    )


def _with_group(candidate: Candidate, index: int, group: PreferenceGroup) -> Candidate:
    groups = candidate.case.groups
    return _with_groups(candidate, (*groups[:index], group, *groups[index + 1 :]))


def _with_groups(candidate: Candidate, groups: tuple[PreferenceGroup, ...]) -> Candidate:
    return Candidate(replace(candidate.case, groups=groups), candidate.model)

"""Greedy delta debugging: what can be left out is left out, large parts first, as long as the failure stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from verify.shrink.candidate import (
    PROMPT,
    SMALLEST_WIDTH,
    Candidate,
    Segment,
    edited,
    fewer_heads,
    first_tokens,
    powers_of_two,
    renumbered,
    sharing,
    smaller_field,
    smaller_vocabulary,
    unshared,
    with_config,
    without_groups,
    without_masks,
    without_response,
    without_tokens,
)

_EVERY_PLACE_UP_TO = 8
"""A segment of more chunks than this loses them at its end, its head and its middle only."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop.

    Args:
        trials: Trials at most; the same on every machine.
        until: Time of ``time.monotonic()`` after which no trial begins; whoever is slow ends with a larger case.
    """

    trials: int
    until: float


class LimitReachedError(Exception):
    """No more trials."""


class Search:
    """The smallest candidate so far, and what has been tried.

    Args:
        start: A candidate that fails.
        still_fails: Whether another one fails in the same way.
        limits: When to stop.
    """

    def __init__(self, start: Candidate, still_fails: Callable[[Candidate], bool], limits: Limits) -> None:
        self._still_fails, self._limits = still_fails, limits
        self._known = {start: True}
        self.best = start
        self.trials = 0
        self.stopped_by = ""

    def accepts(self, candidate: Candidate) -> bool:
        """Try a candidate, once; the search goes on from it if it still fails.

        Raises:
            LimitReachedError: There are no trials, or there is no time left.
        """
        if candidate not in self._known:
            if self.trials >= self._limits.trials:
                raise LimitReachedError(f"{self._limits.trials} trials")
            if time.monotonic() >= self._limits.until:
                raise LimitReachedError("the time limit")
            self.trials += 1
            self._known[candidate] = self._still_fails(candidate)
        if self._known[candidate]:
            self.best = candidate
        return self._known[candidate]

    def first_accepted(self, candidates: Iterable[Candidate]) -> bool:
        """Go on from the first candidate that still fails; one that is no other than the best so far does not count."""
        return any(candidate != self.best and self.accepts(candidate) for candidate in candidates)


def minimise(search: Search) -> None:
    """Shrink groups, responses, layers, tokens, masks, widths and token ids, in this order, up to the limits.

    Layers come early because every later trial is cheaper for it.

    Args:
        search: Its ``best`` is the result.
    """
    try:
        _drop_groups(search)
        _drop_responses(search)
        if search.best.model.config is not None:
            _narrow(search, "num_hidden_layers", 1)
        _drop_masks(search)
        _cap(search, lambda segment: segment.part != PROMPT)
        _cap(search, lambda segment: segment.part == PROMPT)
        _delete_tokens(search)
        _drop_masks(search)
        _part_sequences(search)
        if search.best.model.config is not None:
            search.first_accepted(fewer_heads(search.best))
            for field in ("head_dim", "hidden_size", "intermediate_size"):
                _narrow(search, field, SMALLEST_WIDTH)
        search.accepts(renumbered(search.best))
        if search.best.model.config is not None:
            search.first_accepted(smaller_vocabulary(search.best))
    except LimitReachedError as limit:
        search.stopped_by = str(limit)


def _drop_groups(search: Search) -> None:
    size = len(search.best.case.groups) // 2
    while size:
        start, dropped = 0, False
        while start < len(search.best.case.groups) and len(search.best.case.groups) > size:
            if search.accepts(without_groups(search.best, start, size)):
                dropped = True
            else:
                start += size
        size = size if dropped and size == 1 else size // 2


def _drop_responses(search: Search) -> None:
    for group in reversed(range(len(search.best.case.groups))):
        for part in reversed(range(len(search.best.case.groups[group].completions))):
            smaller = without_response(search.best, Segment(group, part))
            if smaller is not None:
                search.accepts(smaller)


def _drop_masks(search: Search) -> None:
    for number, group in enumerate(search.best.case.groups):
        if group.completion_masks:
            search.accepts(without_masks(search.best, number))


def _part_sequences(search: Search) -> None:
    """What still begins alike does so because the failure needs it."""
    for segment in search.best.segments:
        other = unshared(search.best, segment)
        if other is not None:
            search.accepts(other)


def _narrow(search: Search, field: str, smallest: int) -> None:
    start = search.best
    if search.first_accepted(smaller_field(start, field, smallest)):
        return
    one_less = getattr(start.model.seeded_config, field) - 1
    if field == "num_hidden_layers" and one_less > 1:
        search.accepts(with_config(start, **{field: one_less}))


def _cap(search: Search, chosen: Callable[[Segment], bool]) -> None:
    """Cut all prompts, or all responses, to 1, 2, 4, ... tokens: the first length that still fails."""
    start = search.best
    segments = {segment for segment in start.segments if chosen(segment)}
    longest = max(len(start.tokens(segment)) for segment in segments)
    search.first_accepted(edited(start, segments, first_tokens(cap)) for cap in powers_of_two(1, longest))


def _delete_tokens(search: Search) -> None:
    size = max(len(search.best.tokens(segment)) for segment in search.best.segments) // 2
    while size:
        deleted = False
        for segment in search.best.segments:
            while search.first_accepted(_deletions(search.best, segment, size)):
                deleted = True
        for group in range(len(search.best.case.groups)):
            while search.first_accepted(_joint_deletions(search.best, group, size)):
                deleted = True
        for segment in search.best.segments:
            while search.first_accepted(_shared_deletions(search.best, segment, size)):
                deleted = True
        size = size if deleted and size == 1 else size // 2


def _deletions(candidate: Candidate, segment: Segment, size: int) -> Iterator[Candidate]:
    length = len(candidate.tokens(segment))
    if length <= size:
        return
    places = list(range(0, length - size + 1, size))
    if len(places) > _EVERY_PLACE_UP_TO:
        places = [0, places[len(places) // 2]]
    for start in dict.fromkeys([length - size, *places]):
        yield edited(candidate, {segment}, without_tokens(start, size))


def _joint_deletions(candidate: Candidate, group: int, size: int) -> Iterator[Candidate]:
    """From all responses of a group at once: where their lengths must be equal, none can be cut alone."""
    responses = {segment for segment in candidate.segments if segment.group == group and segment.part != PROMPT}
    if all(len(candidate.tokens(segment)) > size for segment in responses):
        for start in (-1, 0):
            yield edited(candidate, responses, without_tokens(start, size))


def _shared_deletions(candidate: Candidate, segment: Segment, size: int) -> Iterator[Candidate]:
    """From all segments that begin as this one does, up to what is taken out: they go on sharing the rest."""
    for start in range(0, len(candidate.tokens(segment)) - size + 1, size):
        alike = sharing(candidate, segment, start + size)
        if len(alike) == 1:
            return
        if min(alike, key=candidate.segments.index) == segment and all(
            len(candidate.tokens(other)) > size for other in alike
        ):
            yield edited(candidate, alike, without_tokens(start, size))

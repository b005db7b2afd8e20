"""Which passes calls without gradients belong to: a step may run its policy more than once before it differentiates.

One pass for the coefficients and one for what is logged feed twice what one feeds, packed or not. So the completions
are looked for in what was fed: who feeds all of them twice ran two passes, each of which saves by itself or does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from verify.groups import PreferenceGroup, TokenIds

Rows = Sequence[Sequence[int]]
"""Token ids of the rows of one call."""


@dataclass(frozen=True, slots=True)
class FedPass:
    """Calls that together ran completions once.

    Args:
        slots: Token slots that were fed.
        rows: Rows that were fed.
        pairwise_slots: Slots that one unpadded row for each of those completions would have had.
        pairwise_rows: Number of those completions.
    """

    slots: int = 0
    rows: int = 0
    pairwise_slots: int = 0
    pairwise_rows: int = 0


@dataclass(frozen=True, slots=True)
class _Sequence:
    """A prompt and a completion, and how many of the completion's first tokens another one of the prompt begins with.

    Where turns are shared these stand once in a row, before the one or the other.
    """

    prompt: TokenIds
    completion: TokenIds
    shared: int

    @property
    def needles(self) -> tuple[TokenIds, ...]:
        """Its own tokens, or all of one that another goes on from.

        The last one predicts nothing and need not be fed, where others are left.
        """
        own = self.completion[self.shared :] or self.completion
        return (own, own[:-1]) if len(own) > 1 else (own,)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.completion)


def split_into_passes(calls: Sequence[Rows], groups: Sequence[PreferenceGroup]) -> tuple[FedPass, ...]:
    """Tell passes apart by how often each completion was fed before.

    Args:
        calls: What the policy was fed without gradients, call by call.
        groups: What the step was given.

    Returns:
        The passes in order where there are several; none where a call holds no completion as a run of tokens behind
        its prompt, or where a pass holds no two completions of one prompt, so that it could not have saved anything.
    """
    sequences = sorted(_sequences(groups), key=lambda each: len(each.completion), reverse=True)
    prompts = tuple(dict.fromkeys(group.prompt_ids for group in groups))
    times_given = Counter((each.prompt, each.completion) for each in sequences)
    fed: Counter[tuple[TokenIds, TokenIds]] = Counter()
    passes: dict[int, tuple[FedPass, list[_Sequence]]] = {}
    for rows in calls:
        found = [each for row in rows for each in _found_in(row, sequences, prompts)]
        if not found:
            return ()
        keys = [(each.prompt, each.completion) for each in found]
        number = max(fed[key] // times_given[key] for key in keys)
        fed.update(keys)
        so_far, in_it = passes.get(number, (FedPass(), []))
        passes[number] = (
            FedPass(
                so_far.slots + sum(map(len, rows)),
                so_far.rows + len(rows),
                so_far.pairwise_slots + sum(each.length for each in found),
                so_far.pairwise_rows + len(found),
            ),
            in_it + found,
        )
    if any(len({each.prompt for each in in_it}) == len(in_it) for _, in_it in passes.values()):
        return ()
    return tuple(passes[number][0] for number in sorted(passes)) if len(passes) > 1 else ()


def _sequences(groups: Sequence[PreferenceGroup]) -> Iterator[_Sequence]:
    for group in groups:
        for index, completion in enumerate(group.completions):
            others = group.completions[:index] + group.completions[index + 1 :]
            yield _Sequence(
                group.prompt_ids, completion, max((_common(completion, other) for other in others), default=0)
            )


def _common(one: TokenIds, other: TokenIds) -> int:
    """How many first tokens two completions have in common."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _found_in(row: Sequence[int], sequences: Sequence[_Sequence], prompts: Sequence[TokenIds]) -> list[_Sequence]:
    """The completions that stand in a row behind their prompts: whatever leaves fewest of its slots unexplained.

    A response may go on as a longer prompt does. So the row is taken for what it holds of all groups, in their order or
    with the longest prompt first, and for one of each prompt alone.
    """
    orders = [prompts, sorted(prompts, key=len, reverse=True), *((prompt,) for prompt in prompts)]
    return min((_reading(row, sequences, order) for order in orders), key=lambda reading: reading[0])[1]


def _reading(
    row: Sequence[int], sequences: Sequence[_Sequence], prompts: Sequence[TokenIds]
) -> tuple[int, list[_Sequence]]:
    """The number of slots left over, and the completions of some prompts, longest first; no slot is taken twice."""
    left: list[int | None] = list(row)
    starts: dict[TokenIds, int] = {}
    for prompt in prompts:
        if (start := _take(left, prompt, 0)) is not None:
            starts[prompt] = start
    found = []
    for each in sequences:
        if each.prompt not in starts:
            continue
        places = (_take(left, needle, starts[each.prompt]) for needle in each.needles)
        place = next((place for place in places if place is not None), None)
        if place is None:
            continue
        found.append(each)
        shared, before = each.completion[: each.shared], place - each.shared
        if left[before:place] == list(shared):
            left[before:place] = [None] * len(shared)
    return sum(token is not None for token in left), found


def _take(left: list[int | None], ids: TokenIds, start: int) -> int | None:
    """The first place from ``start`` on where all of some ids are left; they are not any more then."""
    wanted: list[int | None] = list(ids)
    for place in range(start, len(left) - len(ids) + 1):
        if left[place] == ids[0] and left[place : place + len(ids)] == wanted:
            left[place : place + len(ids)] = [None] * len(ids)
            return place
    return None

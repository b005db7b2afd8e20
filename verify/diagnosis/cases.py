"""The cases that a diagnosis is made on: one made to tell faults apart, then those that failed, richest first."""

from __future__ import annotations

import random
from collections.abc import Sequence

from verify.cases import Case
from verify.comparison import completion_name
from verify.groups import PreferenceGroup, TokenIds

CASE_NAME = "diagnosis"
_MOST_TOKENS_SHOWN = 60
_SIZES = ((19, 13, 22), (40, 66, 30), (7, 9, 17))
"""Prompt, chosen, rejected of three uneven groups: a row of more than a block, a path of more than 100 tokens."""


def diagnostic_case(vocab_size: int, seed: int) -> Case | None:
    """A case in which no token id occurs twice, so that a slot is known by its id, wherever a subject puts it.

    Id 0 is left out: it is what rows are usually filled up with.

    Args:
        vocab_size: Ids are drawn from [1, vocab_size).
        seed: Seed of the draw.

    Returns:
        The case, or None where the vocabulary is too small for it.
    """
    needed = sum(map(sum, _SIZES))
    if vocab_size - 1 < needed:
        return None
    drawn = random.Random(seed).sample(range(1, vocab_size), needed)

    def take(count: int) -> TokenIds:
        taken = tuple(drawn[:count])
        del drawn[:count]
        return taken

    groups = tuple(PreferenceGroup(take(p), (take(c),), (take(r),)) for p, c, r in _SIZES)
    return Case(name=CASE_NAME, why="no token id occurs twice: slots are known by their ids", groups=groups)


def richest_first(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Cases in the order of what they can show: more groups first, then more completion tokens.

    Args:
        cases: Cases on which a subject failed.

    Returns:
        The same cases.
    """
    return tuple(sorted(cases, key=lambda case: (-len(case.groups), -case.num_completion_tokens, case.name)))


def case_in_words(case: Case) -> str:
    """What a case holds, so that it can be written down again.

    Args:
        case: A small case.

    Returns:
        Token ids, e.g. "prompt 5 9, chosen 4, rejected 7 3; prompt ..."; of many tokens their numbers.
    """
    total = sum(len(ids) for group in case.groups for ids in (group.prompt_ids, *group.completions))

    def shown(ids: TokenIds) -> str:
        return " ".join(map(str, ids)) if total <= _MOST_TOKENS_SHOWN else f"of {len(ids)} tokens"

    return "; ".join(
        f"prompt {shown(group.prompt_ids)}, "
        + ", ".join(
            f"{completion_name(index, len(group.positives))} {shown(ids)}"
            for index, ids in enumerate(group.completions)
        )
        for group in case.groups
    )

"""Cases for models of real size: few, since each costs minutes at full depth."""

from __future__ import annotations

import random
from collections.abc import Sequence

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds


def synthetic_cases(vocab_size: int, seed: int) -> tuple[Case, ...]:
    """Cases for a model of real size: few, since each costs minutes at full depth.

    Args:
        vocab_size: Token ids are drawn from [0, vocab_size).
        seed: Seed of the token ids.

    Returns:
        Two pairs of about 150 tokens in one row.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    groups = tuple(
        PreferenceGroup(tokens(prompt), (tokens(chosen),), (tokens(rejected),))
        for prompt, chosen, rejected in ((62, 49, 38), (41, 30, 78))
    )
    return (Case(name="two-pairs-of-150", why="ordinary pairs of about 150 tokens, both in one row", groups=groups),)


def real_cases(groups: Sequence[PreferenceGroup]) -> tuple[Case, ...]:
    """Cases from real pairs: two to a row, so that several trees in one row are met as well.

    Args:
        groups: Real groups, in the order of their lengths.

    Returns:
        One case for every two groups; shortest and longest share a row, so that rows are uneven inside.
    """
    order = list(groups)
    cases: list[Case] = []
    while order:
        pair = (order.pop(0), order.pop()) if len(order) > 1 else (order.pop(),)
        sources = " and ".join(group.source for group in pair)
        cases.append(Case(name=f"pairs-{len(cases)}", why=f"real pairs {sources}", groups=pair))
    return tuple(cases)

"""On what the sharded model is judged: pairs of the data, or made-up ones whose lengths differ from rank to rank."""

from __future__ import annotations

import random
from collections.abc import Sequence

from verify.cases import Case
from verify.default_cases.tiny import tiny_cases
from verify.groups import PreferenceGroup, TokenIds

_TINY = ("five-uneven-groups", "length-129")
"""More groups than ranks, and unevenly many; and one group, which leaves the other ranks without."""
_LENGTHS = ((62, 49, 38), (41, 30, 78), (97, 64, 21), (33, 12, 90))
"""Prompt, chosen and rejected of made-up pairs; about 150 tokens, as a pass of a model of real size takes seconds."""


def parity_cases(*, vocab_size: int, seed: int, world_size: int, is_tiny: bool) -> tuple[Case, ...]:
    """Cases of a run without data.

    Args:
        vocab_size: Token ids are drawn from [0, vocab_size).
        seed: Of the token ids.
        world_size: Number of ranks.
        is_tiny: A pass takes milliseconds.

    Returns:
        The cases; every rank but one has a group, one rank has two.
    """
    if is_tiny:
        cases = {case.name: case for case in tiny_cases(vocab_size, seed)}
        return tuple(cases[name] for name in _TINY)
    rng = random.Random(seed)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    groups = tuple(
        PreferenceGroup(tokens(prompt), (tokens(chosen),), (tokens(rejected),))
        for prompt, chosen, rejected in (_LENGTHS[number % len(_LENGTHS)] for number in range(world_size + 1))
    )
    return (Case(name="made-up-pairs", why="pairs of about 150 tokens, one more than ranks", groups=groups),)


def cases_of_data(groups: Sequence[PreferenceGroup]) -> tuple[Case, ...]:
    """One case of the groups that were drawn from the data."""
    return (Case(name="pairs-of-the-data", why="groups of the data, spread over its lengths", groups=tuple(groups)),)


def only_pairs(case: Case) -> Case | None:
    """The case with its pairs alone, for steps that call the model once per response; None without a pair.

    Ranks have to call a sharded model equally often, and unpacked calls are as many as responses.
    """
    pairs = tuple(group for group in case.groups if group.is_pair)
    return Case(name=case.name, why=case.why, groups=pairs, objective_name=case.objective_name) if pairs else None

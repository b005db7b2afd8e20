"""On what the sharded model is judged: pairs of the data, or made-up ones whose lengths differ from rank to rank."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from verify.cases import Case
from verify.default_cases.tiny import tiny_cases
from verify.groups import PreferenceGroup, TokenIds
from verify.subjects.sharded import HONEST, ShardedStages

_TINY = ("five-uneven-groups", "length-129")
"""More groups than ranks, and unevenly many; and one group, which leaves the other ranks without."""
_LENGTHS = ((62, 49, 38), (41, 30, 78), (97, 64, 21), (33, 12, 90))
"""Prompt, chosen and rejected of made-up pairs; about 150 tokens, as a pass of a model of real size takes seconds."""
_SHORT_LENGTHS = ((14, 9, 7), (9, 6, 12), (17, 11, 4), (8, 3, 14))
"""Likewise on a CPU, where it takes a minute; kernels have been looked at on longer rows."""
_GROUPS_OF_CASE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityCase:
    """A case, and the rank that has its first group; the next has the next, and so on around."""

    case: Case
    first_rank: int = 0

    @property
    def stages(self) -> ShardedStages:
        """The honest stages, with the groups dealt from that rank on."""
        return replace(HONEST, assign=self._assign)

    def places_of_ranks(self, world_size: int) -> Sequence[Sequence[int]]:
        """Places of the groups that each rank has."""
        return self._assign(len(self.case.groups), world_size)

    def _assign(self, num_groups: int, world_size: int) -> Sequence[Sequence[int]]:
        return [
            [place for place in range(num_groups) if (self.first_rank + place) % world_size == rank]
            for rank in range(world_size)
        ]


def tiny_parity_cases(vocab_size: int, seed: int) -> tuple[ParityCase, ...]:
    """Cases of a model whose passes take milliseconds."""
    cases = {case.name: case for case in tiny_cases(vocab_size, seed)}
    return tuple(ParityCase(case=cases[name], first_rank=index) for index, name in enumerate(_TINY))


def made_up_pairs(vocab_size: int, seed: int, number: int, *, short: bool = False) -> list[PreferenceGroup]:
    """Pairs of random tokens whose lengths differ from one to the next.

    Args:
        vocab_size: Token ids are drawn from [0, vocab_size).
        seed: Of the token ids.
        number: How many.
        short: About 30 tokens rather than 150.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    known = _SHORT_LENGTHS if short else _LENGTHS
    lengths = (known[index % len(known)] for index in range(number))
    return [PreferenceGroup(tokens(p), (tokens(c),), (tokens(r),)) for p, c, r in lengths]


def parity_cases(groups: Sequence[PreferenceGroup], world_size: int) -> tuple[ParityCase, ...]:
    """Cases of a model of real size: one group more than ranks, so that every rank runs kernels on one.

    The groups are cut into cases of a few, since oracle and single process run a case on one rank, and ranks share the
    cases. Where there are fewer groups than are needed they come again.

    Args:
        groups: At least one.
        world_size: Number of ranks.

    Returns:
        The cases.
    """
    needed = [groups[index % len(groups)] for index in range(world_size + 1)]
    starts = range(0, len(needed), _GROUPS_OF_CASE)
    return tuple(
        ParityCase(
            case=Case(
                name=f"pairs-{number}",
                why="groups of ordinary length, dealt out from another rank in each case",
                groups=tuple(needed[start : start + _GROUPS_OF_CASE]),
            ),
            first_rank=start % world_size,
        )
        for number, start in enumerate(starts)
    )


def all_pairs(cases: Sequence[ParityCase]) -> ParityCase | None:
    """One case of the pairs of all, for steps that call the model once per response; None without a pair.

    Ranks have to call a sharded model equally often, and unpacked calls are as many as responses.
    """
    pairs = tuple(group for each in cases for group in each.case.groups if group.is_pair)
    if not pairs:
        return None
    return ParityCase(case=Case(name="all-pairs", why="the pairs of all cases", groups=pairs))

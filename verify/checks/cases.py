"""The small fixed cases of the exact checks, drawn for the vocabulary of a model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds

CaseName = Literal["distinct-tokens", "uneven-groups", "long-rows", "special-ids"]

_Lengths = tuple[int, int, int]
"""Tokens of prompt, chosen and rejected."""

_DISTINCT: tuple[_Lengths, ...] = ((5, 3, 2), (3, 1, 3), (4, 2, 1))
_UNEVEN: tuple[_Lengths, ...] = ((4, 3, 2), (2, 1, 4), (5, 4, 2))
_LONG: tuple[_Lengths, ...] = ((270, 20, 9), (30, 70, 65), (127, 1, 30))
_SPECIAL: _Lengths = (4, 6, 5)
_MOST_TOKENS_SHOWN = 60
_RESERVED = 2
"""Ids 0 and 1 are left out of the distinct tokens: a packed row may be padded with them."""


@dataclass(frozen=True, slots=True)
class CheckCases:
    """The cases that a vocabulary allows.

    Args:
        by_name: The cases.
        other_token: For each token of the distinct case one that occurs nowhere in it, so that a rewritten case holds
            distinct tokens too. Empty where the vocabulary is too small.
    """

    by_name: Mapping[CaseName, Case]
    other_token: Mapping[int, int]


def check_cases(vocab_size: int, seed: int) -> CheckCases:
    """Draw the cases.

    Args:
        vocab_size: Token ids are drawn from [0, vocab_size).
        seed: Seed of the token ids.

    Returns:
        All cases; without "distinct-tokens" where the vocabulary has too few tokens for it.
    """
    rng = random.Random(seed)

    def drawn(name: CaseName, why: str, lengths: Sequence[_Lengths]) -> Case:
        return _case(name, why, lengths, [rng.randrange(vocab_size) for _ in range(sum(map(sum, lengths)))])

    by_name: dict[CaseName, Case] = {
        "uneven-groups": drawn("uneven-groups", "three groups, uneven in every part", _UNEVEN),
        "long-rows": drawn("long-rows", "several blocks of 128 slots, positions beyond 256", _LONG),
    }
    ids = [rng.randrange(1, vocab_size) for _ in range(sum(_SPECIAL))]
    ids[6] = ids[9]  # the third and the last token of chosen
    ids[11] = 0  # the second token of rejected
    why = "the end token occurs early, token 0 is a word: a mask rebuilt from ids is wrong"
    by_name["special-ids"] = _case("special-ids", why, [_SPECIAL], ids)
    needed = sum(map(sum, _DISTINCT))
    if vocab_size < _RESERVED + 2 * needed:
        return CheckCases(by_name, {})
    ids = rng.sample(range(_RESERVED, vocab_size), 2 * needed)
    by_name["distinct-tokens"] = _case(
        "distinct-tokens", "no token occurs twice, so that a slot is known by its token", _DISTINCT, ids[:needed]
    )
    return CheckCases(by_name, dict(zip(ids[:needed], ids[needed:], strict=True)))


def case_in_words(case: Case) -> str:
    """What a case holds, so that it can be written down again.

    Args:
        case: A small case.

    Returns:
        Token ids, e.g. "prompt 5 9, chosen 4, rejected 7 3; prompt ..."; of more than 60 tokens their numbers.
    """
    total = sum(len(ids) for group in case.groups for ids in (group.prompt_ids, *group.completions))

    def shown(ids: TokenIds) -> str:
        return " ".join(map(str, ids)) if total <= _MOST_TOKENS_SHOWN else f"of {len(ids)} tokens"

    return "; ".join(
        f"prompt {shown(group.prompt_ids)}, chosen {shown(group.positives[0])}, rejected {shown(group.negatives[0])}"
        for group in case.groups
    )


def _case(name: CaseName, why: str, lengths: Sequence[_Lengths], ids: Sequence[int]) -> Case:
    rest = iter(ids)

    def take(count: int) -> TokenIds:
        return tuple(next(rest) for _ in range(count))

    groups = tuple(PreferenceGroup(take(p), (take(c),), (take(r),)) for p, c, r in lengths)
    return Case(name=name, why=why, groups=groups)

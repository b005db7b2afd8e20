"""The small fixed cases of the exact checks, drawn for the vocabulary of a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, get_args

from verify.cases import Case, under
from verify.groups import PreferenceGroup, TokenIds
from verify.objective import REWARD_MODEL, ComparingName, ObjectiveName

CaseName = Literal[
    "distinct-tokens",
    "uneven-groups",
    "long-rows",
    "special-ids",
    "distinct-turns",
    "distinct-examples",
    "examples-weighed-alike",
    "groups-of-one-prompt",
    "one-conversation",
    "six-levels",
]

_Lengths = tuple[int, int, int]
"""Tokens of prompt, chosen and rejected."""

_DISTINCT: tuple[_Lengths, ...] = ((5, 3, 2), (3, 1, 3), (4, 2, 1))
_UNEVEN: tuple[_Lengths, ...] = ((4, 3, 2), (2, 1, 4), (5, 4, 2))
_LONG: tuple[_Lengths, ...] = ((270, 20, 9), (30, 70, 65), (127, 1, 30))
_SPECIAL: _Lengths = (4, 6, 5)
_MOST_TOKENS_SHOWN = 60
_RESERVED = 2
"""Ids 0 and 1 are left out of the distinct tokens: a packed row may be padded with them."""

_Take = Callable[[int], TokenIds]
"""Gives so many tokens that it has not given before."""


@dataclass(frozen=True, slots=True)
class CheckCases:
    """The cases that a vocabulary allows.

    Args:
        by_name: The cases.
        other_token: For each token of a distinct case one that occurs nowhere in it, so that a rewritten case holds
            distinct tokens too, and shares no more first tokens than before. By the name of the case.
    """

    by_name: Mapping[CaseName, Case]
    other_token: Mapping[str, Mapping[int, int]]
    elsewhere: frozenset[CaseName] = frozenset()

    def on(self, *, reward_model: bool) -> CheckCases:
        """Those that are run on a reward model, or the others, which are run on the causal LM."""
        kept = {
            name: case for name, case in self.by_name.items() if (case.objective_name == REWARD_MODEL) is reward_model
        }
        others = get_args(CaseName) if reward_model else self.by_name
        return replace(self, by_name=kept, elsewhere=frozenset(others) - kept.keys())


def check_cases(vocab_size: int, seed: int, objective: ComparingName = "sigmoid") -> CheckCases:
    """Draw the cases.

    Args:
        vocab_size: Token ids are drawn from [0, vocab_size).
        seed: Seed of the token ids.
        objective: The objective of cases with rejected responses.

    Returns:
        All cases; without those of distinct tokens for which the vocabulary has too few.
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
    other_token: dict[str, dict[int, int]] = {}
    for name, (why, groups_of) in _DISTINCT_CASES.items():
        numbers = count()
        groups_of(_taking(numbers))
        needed = next(numbers)
        if vocab_size >= _RESERVED + 2 * needed:
            ids = rng.sample(range(_RESERVED, vocab_size), 2 * needed)
            objective_name: ObjectiveName = "sft-token-mean" if groups_of is _examples else "sigmoid"
            by_name[name] = Case(name=name, why=why, groups=groups_of(_taking(ids)), objective_name=objective_name)
            other_token[name] = dict(zip(ids[:needed], ids[needed:], strict=True))
    if (examples := by_name.get("distinct-examples")) is not None:
        by_name["examples-weighed-alike"] = replace(
            examples,
            name="examples-weighed-alike",
            why="the same examples under the mean that weighs them alike",
            objective_name="sft-example-mean",
        )

    def tokens(number: int) -> TokenIds:
        return tuple(rng.randrange(vocab_size) for _ in range(number))

    by_name["groups-of-one-prompt"] = Case(
        name="groups-of-one-prompt",
        why="two masked groups of one prompt, alike in numbers; one of them holds a response twice",
        groups=_of_one_prompt(tokens),
    )
    by_name["one-conversation"] = Case(
        name="one-conversation",
        why="what one example learns another holds in its prompt or masks; one comes twice, one has four spans",
        groups=_conversation(tokens),
        objective_name="sft-example-mean",
    )
    numbers = count()
    _deep(_taking(numbers))
    if vocab_size >= _RESERVED + (needed := next(numbers)):
        by_name["six-levels"] = Case(
            name="six-levels",
            why="a tree in which a segment has five above it, no two tokens alike but where all before them is shared",
            groups=_deep(_taking(rng.sample(range(_RESERVED, vocab_size), needed))),
        )
    return CheckCases({name: under(case, objective) for name, case in by_name.items()}, other_token)


def rewrite(
    groups: Sequence[PreferenceGroup], other_token: Mapping[int, int], token_ids: Collection[int]
) -> tuple[PreferenceGroup, ...]:
    """Groups of the same lengths with some tokens exchanged.

    Args:
        groups: The groups.
        other_token: What a token becomes.
        token_ids: The tokens that are exchanged, wherever they occur.

    Returns:
        New groups.
    """

    def edited(ids: TokenIds) -> TokenIds:
        return tuple(other_token[token] if token in token_ids else token for token in ids)

    return tuple(
        replace(
            group,
            prompt_ids=edited(group.prompt_ids),
            positives=tuple(map(edited, group.positives)),
            negatives=tuple(map(edited, group.negatives)),
        )
        for group in groups
    )


def _case(name: CaseName, why: str, lengths: Sequence[_Lengths], ids: Sequence[int]) -> Case:
    return Case(name=name, why=why, groups=_pairs(lengths, _taking(ids)))


def _taking(ids: Iterable[int]) -> _Take:
    rest = iter(ids)
    return lambda number: tuple(next(rest) for _ in range(number))


def _pairs(lengths: Sequence[_Lengths], take: _Take) -> tuple[PreferenceGroup, ...]:
    return tuple(PreferenceGroup(take(p), (take(c),), (take(r),)) for p, c, r in lengths)


def _turns(take: _Take) -> tuple[PreferenceGroup, ...]:
    """A tree of four levels below its prompt, a pair whose prompt begins as that one does, and a group without either.

    Of the tree one response ends inside another::

        prompt - first - second - third - (chosen 0)
                  |        |        +---- (rejected 0)
                  |        + chosen 1 ends here
                  +------------------- (rejected 1)
    """
    prompt, first, second, third = take(4), take(2), take(1), take(2)
    deep = first + second + third
    return (
        PreferenceGroup(prompt, (deep + take(2), first + second), (deep + take(1), first + take(2))),
        PreferenceGroup(prompt[:2] + take(1), (take(2),), (take(3),)),
        PreferenceGroup(take(3), (take(1), take(3)), (take(2),)),
    )


def _deep(take: _Take) -> tuple[PreferenceGroup, ...]:
    """At each of four turns a response goes another way; two share all of them."""
    prompt, *turns = (take(count) for count in (2, 1, 1, 1, 1))
    begun = [sum(turns[:depth], ()) for depth in range(5)]
    return (PreferenceGroup(prompt, (begun[4] + take(2),), (begun[4] + take(3), *(b + take(1) for b in begun[:4]))),)


def _examples(take: _Take) -> tuple[PreferenceGroup, ...]:
    """A conversation that ends with a token not learned, two rollouts that share a turn, and a prompt of one token."""
    yes, no = True, False
    prompt, turn = take(2), take(3)
    return (
        PreferenceGroup(take(3), (take(7),), completion_masks=((yes, yes, no, no, yes, yes, no),)),
        PreferenceGroup(
            prompt, (turn + take(2), turn + take(1)), completion_masks=((yes, yes, no, yes, yes), (yes, yes, no, yes))
        ),
        PreferenceGroup(take(1), (take(6),)),
    )


def _of_one_prompt(take: _Take) -> tuple[PreferenceGroup, ...]:
    """Two groups of three preferred and five rejected responses; those of three tokens do not learn the last one."""
    prompt, again = take(2), take(2)
    sizes = ((2, 3, 1), (1, 2, 3, 2, 2))

    def group(twice: TokenIds | None) -> PreferenceGroup:
        positives, negatives = (tuple(take(size) for size in side) for side in sizes)
        if twice is not None:
            negatives = (negatives[0], twice, negatives[2], twice, negatives[4])
        masks = tuple(
            (True,) * (len(ids) - (len(ids) > 2)) + (False,) * (len(ids) > 2) for ids in positives + negatives
        )
        return PreferenceGroup(prompt, positives, negatives, completion_masks=masks)

    return group(again), group(None)


def _conversation(take: _Take) -> tuple[PreferenceGroup, ...]:
    """A conversation ``p a u b`` whole, turn by turn and with its last turn alone, and others."""
    yes, no = True, False
    prompt, first, user, last = take(2), take(2), take(1), take(2)
    turns = (no,) * len(user) + (yes,) * len(last)
    return (
        PreferenceGroup(prompt + first + user, (last,)),
        PreferenceGroup(prompt, (first, first + user + last), completion_masks=((yes, yes), (no, no, *turns))),
        PreferenceGroup(prompt, (first + user + last,), completion_masks=((yes, yes, *turns),)),
        PreferenceGroup(take(1), (take(7),), completion_masks=((yes, no, yes, no, yes, no, yes),)),
    )


_DISTINCT_CASES: Mapping[CaseName, tuple[str, Callable[[_Take], tuple[PreferenceGroup, ...]]]] = {
    "distinct-tokens": (
        "no token occurs twice, so that a slot is known by its token",
        lambda take: _pairs(_DISTINCT, take),
    ),
    "distinct-turns": (
        "groups of several responses, turns that they share: a token occurs twice only where all before it is shared",
        _turns,
    ),
    "distinct-examples": (
        "supervised examples of one, several and shared turns, no two tokens alike but those of the shared one",
        _examples,
    ),
}

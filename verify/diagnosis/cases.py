"""The cases that a diagnosis is made on: of each kind one made to tell faults apart, then those that failed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from verify.cases import Case, CaseKind
from verify.groups import PreferenceGroup, TokenIds
from verify.objective import COMPARING_NAMES, SFT_NAMES, ObjectiveName
from verify.places import completion_name

CASE_NAME = "diagnosis"
_SIZES = ((19, 13, 22), (40, 66, 30), (7, 9, 17))
"""Prompt, chosen, rejected of three uneven groups: a row of more than a block, a path of more than 100 tokens."""
_MOST_TOKENS_SHOWN = 60
_WHY = "no token id stands in two places: slots are known by their ids"

Take = Callable[[int], TokenIds]


def diagnostic_cases(
    vocab_size: int, seed: int, wanted: Sequence[tuple[CaseKind, ObjectiveName]]
) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    """Cases in which a slot is known by its id, wherever a subject puts it: no id occurs behind two different prefixes.

    Id 0 is left out: it is what rows are usually filled up with.

    Args:
        vocab_size: Ids are drawn from [1, vocab_size).
        seed: Seed of the draw.
        wanted: Kinds and objectives.

    Returns:
        One case for each that the vocabulary is large enough for; and a sentence for each other.
    """
    cases, notes = [], []
    for kind, objective_name in wanted:
        ids = random.Random(seed).sample(range(1, vocab_size), vocab_size - 1)
        taken = iter(ids)

        def take(count: int, left: Iterator[int] = taken) -> TokenIds:
            return tuple(islice(left, count))

        of_kind = f"{CASE_NAME}-groups" if kind == "groups" else CASE_NAME
        # What was measured on a case is kept by its name: each objective has one of its own.
        name = of_kind if objective_name == "sigmoid" else f"{of_kind}-{objective_name}"
        if vocab_size - 1 < _NUM_TOKENS[kind]:
            notes.append(f"no case {name} was made: it takes {_NUM_TOKENS[kind]} token ids of {vocab_size}")
            continue
        cases.append(Case(name=name, why=_WHY, groups=_GROUPS[kind](take), objective_name=objective_name))
    return tuple(cases), tuple(notes)


def _pairs(take: Take) -> tuple[PreferenceGroup, ...]:
    return tuple(PreferenceGroup(take(p), (take(c),), (take(r),)) for p, c, r in _SIZES)


def _trees(take: Take) -> tuple[PreferenceGroup, ...]:
    """A tree of turns four levels deep, a group whose prompt begins as that of the first, and one without a tree.

    The second positive of the first group ends inside the tree; one response of the last has a turn of somebody else.
    """
    prompt, first, second = take(15), take(6), take(7)
    turns = first + second
    masks = ((True,) * 11, (True,) * 5 + (False,) * 6 + (True,) * 45, (True,) * 20)
    return (
        PreferenceGroup(prompt, (turns + take(5), turns), (turns + take(8), first + take(9), take(10))),
        PreferenceGroup(prompt[:6] + take(8), (take(7),), (take(9),)),
        PreferenceGroup(take(12), (take(11),), (take(56), take(20)), completion_masks=masks),
    )


def _examples(take: Take) -> tuple[PreferenceGroup, ...]:
    """Conversations of several turns, a prompt of one token, one of which only a token counts, and rollouts."""

    def example(prompt: int, *turns: int) -> PreferenceGroup:
        mask = tuple(place % 2 == 0 for place, length in enumerate(turns) for _ in range(length))
        return PreferenceGroup(take(prompt), (take(sum(turns)),), completion_masks=(mask,))

    prompt, first, user = take(10), take(7), take(4)
    shared = (True,) * len(first) + (False,) * len(user)
    rollouts = PreferenceGroup(
        prompt,
        (first + user + take(6), first + user + take(2), take(9)),
        completion_masks=(shared + (True,) * 6, shared + (True,) * 2, (True,) * 9),
    )
    return (example(15, 6, 4, 7), example(1, 23), rollouts, example(18, 1), example(12, 31, 9, 14), example(14, 4, 7))


_GROUPS: Mapping[CaseKind, Callable[[Take], tuple[PreferenceGroup, ...]]] = {
    "pairs": _pairs,
    "groups": _trees,
    "examples": _examples,
}
_NUM_TOKENS: Mapping[CaseKind, int] = {"pairs": 223, "groups": 183, "examples": 203}
"""Different token ids of each."""


def kinds_to_try(failing: Sequence[Case], taken: Sequence[CaseKind]) -> tuple[tuple[CaseKind, ObjectiveName], ...]:
    """Kinds and objectives in the order in which a subject is tried on them: pairs say most, and are the simplest.

    Args:
        failing: Cases on which it failed; where there are none, all kinds that it takes are tried.
        taken: Kinds that it takes.

    Returns:
        Distinct kinds with their objective.
    """
    found = {(case.kind, case.objective_name) for case in failing}
    # Where nothing failed, the objective that every subject computes stands for the others.
    preferences = [name for name in COMPARING_NAMES if failing or name == COMPARING_NAMES[0]]
    kinds: tuple[CaseKind, ...] = ("pairs", "groups")
    known: list[tuple[CaseKind, ObjectiveName]] = [(kind, name) for kind in kinds for name in preferences]
    known += [("examples", name) for name in SFT_NAMES]
    return tuple(item for item in known if (item in found if failing else item[0] in taken))


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

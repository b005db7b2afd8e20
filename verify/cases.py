"""Named cases: the inputs on which a subject is judged.

Each case exists because some public fault shows only there; ``why`` says which property it brings. Token ids are
random with a recorded seed, so that no case depends on a tokenizer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from verify.groups import PreferenceGroup, TokenIds
from verify.objective import OBJECTIVE_NAMES, ObjectiveName, PreferenceName, is_preference

CaseKind = Literal["pairs", "groups", "examples"]
CASE_KINDS: tuple[CaseKind, ...] = ("pairs", "groups", "examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input of the gate.

    Args:
        name: Stable id.
        why: What this case can show that others cannot.
        groups: The preference groups; a packed subject may put all of them into one row.
        objective_name: The objective whose loss and gradients are compared.

    Raises:
        ValueError: No group, an unknown objective, or a rejected response missing where the objective
            compares, or given where it does not.
    """

    name: str
    why: str
    groups: tuple[PreferenceGroup, ...]
    objective_name: ObjectiveName = "sigmoid"

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError(f"case {self.name}: no groups, nothing would be compared")
        if self.objective_name not in OBJECTIVE_NAMES:
            raise ValueError(
                f"case {self.name}: unknown objective {self.objective_name!r}; give one of {', '.join(OBJECTIVE_NAMES)}"
            )
        for index, group in enumerate(self.groups):
            if is_preference(self.objective_name) and not group.negatives:
                raise ValueError(
                    f"case {self.name}, group {index}: no rejected response, so that the objective "
                    f"{self.objective_name} compares nothing; give one, or an SFT objective"
                )
            if not is_preference(self.objective_name) and group.negatives:
                raise ValueError(
                    f"case {self.name}, group {index}: a rejected response under {self.objective_name}, which "
                    "learns from preferred ones only"
                )

    @property
    def kind(self) -> CaseKind:
        """What a subject has to take: pairs, groups of any number of responses, or supervised examples."""
        if not is_preference(self.objective_name):
            return "examples"
        return "pairs" if all(group.is_pair and not group.completion_masks for group in self.groups) else "groups"

    @property
    def num_passes(self) -> int:
        """Forward passes of a step: the policy's, and for a preference the frozen policy's."""
        return 1 if self.kind == "examples" else 2

    @property
    def num_completion_tokens(self) -> int:
        """Supervised tokens over all completions."""
        return sum(sum(group.num_supervised) for group in self.groups)

    @property
    def num_completions(self) -> int:
        """Completions over all groups; as many rows has the pairwise layout."""
        return sum(len(group.completions) for group in self.groups)

    @property
    def pairwise_slots(self) -> int:
        """Token slots that one unpadded row per completion feeds to the embedding."""
        return sum(len(group.prompt_ids) + len(ids) for group in self.groups for ids in group.completions)


def under(case: Case, preference: PreferenceName) -> Case:
    """A case with another preference objective; a case of examples as it is."""
    return replace(case, objective_name=preference) if is_preference(case.objective_name) else case


def tiny_cases(vocab_size: int, seed: int) -> tuple[Case, ...]:
    """The embedded default cases.

    Args:
        vocab_size: Token ids are drawn from [0, vocab_size).
        seed: Seed of the token ids.

    Returns:
        Cases with stable names, in a fixed order.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    def pair(prompt: int, chosen: int, rejected: int) -> PreferenceGroup:
        prompt_ids, chosen_ids, rejected_ids = tokens(prompt), tokens(chosen), tokens(rejected)
        while rejected_ids == chosen_ids:  # equal responses have a margin of zero, which proves nothing
            rejected_ids = tokens(rejected)
        return PreferenceGroup(prompt_ids, (chosen_ids,), (rejected_ids,))

    lengths: Sequence[tuple[str, str, Sequence[tuple[int, int, int]]]] = (
        ("balanced", "an ordinary pair", [(24, 16, 14)]),
        ("one-token-prompt", "the shared segment is its own predictor row; a split prompt is empty", [(1, 9, 12)]),
        ("one-token-chosen", "a branch whose only token is predicted from the prompt", [(17, 1, 9)]),
        ("one-token-rejected", "the same on the other side", [(17, 9, 1)]),
        ("one-token-responses", "branches of one token each: every prediction is made by the prompt", [(17, 1, 1)]),
        ("equal-responses", "equal lengths: a swap of branches keeps every shape", [(20, 15, 15)]),
        ("very-unequal-responses", "padding and lengths by maximum show", [(16, 3, 90)]),
        ("long-prompt", "positions beyond 256; most of the row is shared", [(300, 14, 11)]),
        ("response-longer-than-prompt", "positions restart far from where the row stands", [(8, 60, 48)]),
        ("length-127", "one below the block size of block-sparse kernels", [(127, 127, 127)]),
        ("length-128", "branches start on a block boundary", [(128, 128, 128)]),
        ("length-129", "one above the block size", [(129, 129, 129)]),
        ("two-groups", "two trees in one row", [(19, 13, 10), (11, 7, 9)]),
        ("five-uneven-groups", "many trees in one row, uneven in every part",
         [(33, 5, 21), (2, 18, 4), (48, 1, 6), (7, 27, 26), (14, 11, 1)]),
    )  # fmt: skip
    cases = [Case(name=name, why=why, groups=tuple(pair(*sizes) for sizes in groups)) for name, why, groups in lengths]
    # Drawn last: the token ids of every case above stay as they are.
    return (
        *cases,
        *_content_cases(tokens),
        *_cases_of_groups_alike(tokens, pair),
        *_cases_of_larger_groups(tokens),
        *_cases_of_examples(tokens),
        _prompts_that_begin_alike(tokens),
    )


def _content_cases(tokens: Callable[[int], TokenIds]) -> tuple[Case, ...]:
    start, left, right = tokens(7), tokens(8), tokens(10)
    long = tokens(22)
    prompt = tokens(18)
    echo = tokens(2) * 3
    return (
        Case(
            name="responses-begin-alike",
            why="equal tokens at the branch start: the prompt must not grow into the responses",
            groups=(PreferenceGroup(tokens(21), (start + left,), (start + right,)),),
        ),
        Case(
            name="chosen-is-a-prefix-of-rejected",
            why="the shorter response is all of it inside the longer one",
            groups=(PreferenceGroup(tokens(15), (long[:9],), (long,)),),
        ),
        Case(
            name="response-repeats-the-prompt",
            why="tokens found again by value, not by place, are found in the wrong segment",
            groups=(PreferenceGroup(prompt, (prompt[:12],), (prompt[6:],)),),
        ),
        Case(
            name="two-tokens-in-turn",
            # With one token all values are equal: attention weights do not matter, gradients of q and k are noise.
            why="token ids carry hardly any information: only positions and the mask tell slots apart",
            groups=(PreferenceGroup(echo * 2, (echo + tokens(2),), (echo[:3] + tokens(4),)),),
        ),
        _special_ids_inside(tokens),
    )


def _special_ids_inside(tokens: Callable[[int], TokenIds]) -> Case:
    end = tokens(1)
    chosen, rejected = tokens(3) + end + tokens(5) + end, (*tokens(4), 0, *tokens(6), *end)
    return Case(
        name="special-ids-inside",
        why="the end token occurs early, token 0 is a word: a mask or length rebuilt from ids is wrong",
        groups=(PreferenceGroup(tokens(13), (chosen,), (rejected,)),),
    )


def _cases_of_groups_alike(
    tokens: Callable[[int], TokenIds], pair: Callable[[int, int, int], PreferenceGroup]
) -> tuple[Case, ...]:
    first, alike = pair(13, 8, 8), pair(11, 6, 9)
    return (
        Case(
            name="same-prompt-twice",
            why="two pairs of one prompt, with a response in common: what is stored by prompt is stored once",
            groups=(first, PreferenceGroup(first.prompt_ids, (tokens(8),), first.positives)),
        ),
        Case(
            name="two-groups-alike",
            why="equal lengths in every group, where shortcuts are taken; one response stands under two prompts",
            groups=(alike, PreferenceGroup(tokens(11), alike.positives, (tokens(9),))),
        ),
        Case(
            name="one-token-prompt-among-others",
            why="a tree whose shared segment is one slot, with a tree on either side",
            groups=(pair(9, 5, 4), pair(1, 6, 3), pair(7, 2, 8)),
        ),
    )


def _cases_of_larger_groups(tokens: Callable[[int], TokenIds]) -> tuple[Case, ...]:
    def group(prompt: int, positives: Sequence[int], negatives: Sequence[int]) -> PreferenceGroup:
        return PreferenceGroup(tokens(prompt), tuple(map(tokens, positives)), tuple(map(tokens, negatives)))

    return (
        Case(
            name="group-of-two-and-three",
            why="more responses than a pair has, a token and many long: pairing by stride and by place goes wrong",
            groups=(group(18, (12, 1), (7, 21, 4)),),
        ),
        Case(
            name="groups-of-uneven-size",
            why="different numbers of responses in one row: a mean over pairs is not one over groups",
            groups=(group(9, (6,), (8,)), group(14, (5, 11), (3,)), group(5, (4,), (9, 2, 6, 7))),
        ),
        Case(
            name="tree-of-turns",
            why="responses share turns four levels deep: a segment has ancestors beyond its parent",
            groups=_trees_of_turns(tokens),
        ),
    )


def _trees_of_turns(tokens: Callable[[int], TokenIds]) -> tuple[PreferenceGroup, ...]:
    """A tree of four levels with a response that ends inside it, and one whose prompt begins as the other's does."""
    prompt, first, second, third = tokens(12), tokens(6), tokens(5), tokens(4)
    deep, short = first + second + third, first + second
    return (
        PreferenceGroup(prompt, (deep + tokens(3), short), (deep + tokens(7), first + tokens(8), tokens(5))),
        PreferenceGroup(prompt[:7] + tokens(4), (tokens(6),), (tokens(9),)),
    )


def _cases_of_examples(tokens: Callable[[int], TokenIds]) -> tuple[Case, ...]:
    def example(prompt: int, *turns: int) -> PreferenceGroup:
        """Turns of the assistant and of the user, in turn, the assistant's first."""
        mask = tuple(place % 2 == 0 for place, length in enumerate(turns) for _ in range(length))
        return PreferenceGroup(tokens(prompt), (tokens(sum(turns)),), completion_masks=(mask,))

    prompt, first, user = tokens(10), tokens(7), tokens(4)
    shared = (True,) * len(first) + (False,) * len(user)
    rollouts = PreferenceGroup(
        prompt,
        (first + user + tokens(6), first + user + tokens(1), tokens(9)),
        completion_masks=(shared + (True,) * 6, (*shared, True), (True,) * 9),
    )
    return (
        Case(
            name="examples-of-uneven-length",
            why="no target across a boundary, and a mean over tokens is not one over examples",
            groups=(example(15, 8), example(1, 23), example(22, 1), example(6, 12)),
            objective_name="sft-token-mean",
        ),
        Case(
            name="examples-of-several-turns",
            why="several supervised spans in one conversation; what others said is not learned",
            groups=(example(9, 6, 4, 7), example(11, 1, 3, 1, 5, 2), example(4, 13)),
            objective_name="sft-example-mean",
        ),
        Case(
            name="rollouts-of-one-prompt",
            why="supervised tokens that two examples share count twice",
            groups=(rollouts, example(20, 18)),
            objective_name="sft-token-mean",
        ),
    )


def _prompts_that_begin_alike(tokens: Callable[[int], TokenIds]) -> Case:
    start = tokens(16)

    def pair(rest: int, chosen: int, rejected: int) -> PreferenceGroup:
        return PreferenceGroup(start + tokens(rest), (tokens(chosen),), (tokens(rejected),))

    return Case(
        name="prompts-begin-alike",
        why="one system prompt, other questions, one of them empty: found by its start, a prompt is another's",
        groups=(pair(5, 6, 4), pair(9, 5, 8), pair(0, 7, 3)),
    )


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

"""Random cases of groups with any number of responses, and of supervised examples.

As for pairs, hypothesis draws the shape and a seeded generator the token ids. Responses that share turns give prefix
trees of several levels; masks give examples with several supervised spans.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from verify.calibration.kinds import DrawnKind
from verify.calibration.shapes import draw, lengths, weighted
from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds
from verify.objective import PREFERENCE_NAMES, ObjectiveName

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Content = Literal["random", "shared-turns", "two-tokens"]

_NUM_GROUPS = ((1, 40), (2, 35), (3, 15), (4, 10))
_NUM_RESPONSES = ((1, 35), (2, 30), (3, 20), (5, 10), (8, 5))
_RESPONSE_RANGES = (((1, 1), 12), ((2, 8), 55), ((4, 31), 30), ((40, 99), 3))
_PROMPT_RANGES = (((1, 1), 10), ((2, 8), 56), ((4, 31), 31), ((40, 139), 3))
_CONTENTS: tuple[tuple[Content, int], ...] = (("random", 45), ("shared-turns", 50), ("two-tokens", 5))
_SHORTEST_PROMPT_OF_FEW_TOKENS = 4


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Lengths of one group, in tokens."""

    prompt: int
    positives: tuple[int, ...]
    negatives: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupCaseShape:
    """What a random case looks like, before token ids are drawn.

    Args:
        groups: Lengths of each group.
        content: What is odd about the token ids. "shared-turns": each response but the first begins as an earlier one.
        masked: Whether parts of the completions are not supervised; of examples and under other objectives.
        objective_name: The objective of the case.
    """

    groups: tuple[GroupShape, ...]
    content: Content
    masked: bool
    objective_name: ObjectiveName


def draw_group_shapes(kind: DrawnKind, seed: int, count: int) -> tuple[GroupCaseShape, ...]:
    """Draw shapes of cases; equal arguments give equal shapes, whatever else is imported.

    Args:
        kind: "groups", "examples" or "objectives".
        seed: Seed of hypothesis.
        count: How many.

    Returns:
        The shapes.
    """
    return draw(_shapes(kind), seed, count)


def _shapes(kind: DrawnKind) -> SearchStrategy[GroupCaseShape]:
    from hypothesis import strategies as st

    def responses(numbers: Sequence[tuple[int, int]]) -> SearchStrategy[tuple[int, ...]]:
        several = weighted(numbers).flatmap(
            lambda n: st.lists(lengths(_RESPONSE_RANGES), min_size=n, max_size=n).map(tuple)
        )
        return several

    negatives = responses(_NUM_RESPONSES) if kind != "examples" else st.just(())
    positives = responses(_NUM_RESPONSES if kind != "examples" else ((1, 70), (2, 20), (4, 10)))
    group = st.builds(GroupShape, lengths(_PROMPT_RANGES), positives, negatives)
    groups = weighted(_NUM_GROUPS).flatmap(lambda n: st.lists(group, min_size=n, max_size=n).map(tuple))
    objectives: tuple[tuple[ObjectiveName, int], ...] = (("sigmoid", 1),)
    if kind == "examples":
        objectives = (("sft-token-mean", 1), ("sft-example-mean", 1))
    if kind == "objectives":
        objectives = tuple((name, 1) for name in PREFERENCE_NAMES)
    masked = st.just(False) if kind == "groups" else weighted(((True, 1), (False, 1)))
    return st.builds(GroupCaseShape, groups, weighted(_CONTENTS), masked, weighted(objectives))


def make_group_case(name: str, shape: GroupCaseShape, vocab_size: int, rng: random.Random) -> Case:
    """Give a shape its token ids.

    Args:
        name: Name of the case.
        shape: The shape; a response grows until it is equal to no other of its group, and a prompt of few kinds of
            token until attention has something to choose from.
        vocab_size: Token ids are drawn from [0, vocab_size).
        rng: The generator of token ids.

    Returns:
        The case; ``why`` says its shape.
    """
    letters: Sequence[int] = rng.sample(range(vocab_size), 2) if shape.content == "two-tokens" else range(vocab_size)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.choice(letters) for _ in range(count))

    groups = []
    for of_group in shape.groups:
        num_prompt = of_group.prompt
        if shape.content == "two-tokens":
            num_prompt = max(num_prompt, _SHORTEST_PROMPT_OF_FEW_TOKENS)
        prompt = tokens(num_prompt)
        if shape.content == "two-tokens":
            prompt = (letters[0], letters[1], *prompt[2:])
        responses: list[TokenIds] = []
        for length in (*of_group.positives, *of_group.negatives):
            response = tokens(length)
            if responses and shape.content == "shared-turns":
                earlier = rng.choice(responses)
                response = earlier[: rng.randint(1, len(earlier))] + response
            while response in responses:  # a margin of zero proves nothing
                response = (*response, rng.choice(letters))
            responses.append(response)
        masks = tuple(_mask(len(ids), rng) for ids in responses) if shape.masked else ()
        num_positives = len(of_group.positives)
        groups.append(
            PreferenceGroup(
                prompt, tuple(responses[:num_positives]), tuple(responses[num_positives:]), completion_masks=masks
            )
        )
    sizes = ", ".join(f"{len(g.prompt_ids)}+{'+'.join(str(len(ids)) for ids in g.completions)}" for g in groups)
    spans = ", masked" if shape.masked else ""
    return Case(
        name=name, why=f"{shape.content}{spans}: {sizes}", groups=tuple(groups), objective_name=shape.objective_name
    )


def _mask(length: int, rng: random.Random) -> tuple[bool, ...]:
    """Spans in turn, supervised or not, of one to six tokens; the last one is supervised."""
    mask: list[bool] = []
    supervised = True
    while len(mask) < length:
        mask = [supervised] * rng.randint(1, 6) + mask
        supervised = not supervised
    return tuple(mask[-length:])

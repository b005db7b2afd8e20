"""Random cases: hypothesis draws their shapes and what is odd about their tokens, a seeded generator the token ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

Content = Literal["random", "responses-begin-alike", "prefix", "repeats-the-prompt", "two-tokens", "one-token"]
Lengths = tuple[int, int, int]
"""Tokens of prompt, chosen and rejected response."""

_FAR = 2**70
"""hypothesis mixes constants from the sources it finds imported into small integers; out here it knows none."""
_NUM_GROUPS = ((1, 70), (2, 18), (3, 6), (4, 3), (5, 3))
_RESPONSE_RANGES = (((1, 1), 10), ((1, 8), 57), ((4, 31), 30), ((40, 139), 3))
_PROMPT_RANGES = (((1, 1), 10), ((1, 8), 56), ((4, 31), 30), ((40, 139), 3), ((257, 316), 1))
_CONTENTS: tuple[tuple[Content, int], ...] = (
    ("random", 74), ("responses-begin-alike", 6), ("prefix", 6), ("repeats-the-prompt", 6), ("two-tokens", 6),
    ("one-token", 2),
)  # fmt: skip


class HypothesisMissingError(ValueError):
    """The optional dependency that draws the cases is not installed."""


@dataclass(frozen=True, slots=True)
class CaseShape:
    """What a random case looks like, before token ids are drawn.

    Args:
        groups: Lengths of each pair.
        content: What is odd about the token ids.
    """

    groups: tuple[Lengths, ...]
    content: Content


def hypothesis_version() -> str:
    """Version of hypothesis: another one may draw other cases from the same seed.

    Raises:
        HypothesisMissingError: It is not installed.
    """
    try:
        import hypothesis
    except ImportError as error:
        raise HypothesisMissingError(
            "calibrate draws its cases with hypothesis, which is not installed: install packparity with its extra, "
            "'.[calibrate]' in place of '.'"
        ) from error
    return str(hypothesis.__version__)


def draw_shapes(seed: int, count: int) -> tuple[CaseShape, ...]:
    """Draw shapes of cases; equal arguments give equal shapes, whatever else is imported.

    Args:
        seed: Seed of hypothesis.
        count: How many.

    Returns:
        The shapes.
    """
    return draw(_shapes(), seed, count)


def draw(strategy: SearchStrategy[T], seed: int, count: int) -> tuple[T, ...]:
    """So many examples of a strategy, the same from the same seed.

    Args:
        strategy: What to draw from.
        seed: Seed of hypothesis.
        count: How many.

    Returns:
        The examples.

    Raises:
        RuntimeError: The strategy has too few different ones.
    """
    from hypothesis import HealthCheck, Phase, Verbosity, given, settings
    from hypothesis import seed as seeded

    drawn: list[T] = []

    # The first example is always the smallest there is; it would be in every batch.
    @seeded(seed)
    @settings(
        max_examples=count + 1,
        phases=[Phase.generate],
        database=None,
        derandomize=False,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(strategy)
    def collect(shape: T) -> None:
        drawn.append(shape)

    collect()
    if len(drawn) <= count:
        raise RuntimeError(f"hypothesis drew {len(drawn)} shapes; {count + 1} were wanted")
    return tuple(drawn[1 : count + 1])


def _shapes() -> SearchStrategy[CaseShape]:
    from hypothesis import strategies as st

    group = st.tuples(lengths(_PROMPT_RANGES), lengths(_RESPONSE_RANGES), lengths(_RESPONSE_RANGES))
    groups = weighted(_NUM_GROUPS).flatmap(lambda n: st.lists(group, min_size=n, max_size=n))
    return st.builds(CaseShape, groups.map(tuple), weighted(_CONTENTS))


def lengths(ranges: Sequence[tuple[tuple[int, int], int]]) -> SearchStrategy[int]:
    """A length from one of several ranges, each as often as its weight says."""
    return weighted(ranges).flatmap(lambda ends: _below(ends[1] - ends[0] + 1).map(lambda i: ends[0] + i))


def weighted(choices: Sequence[tuple[T, int]]) -> SearchStrategy[T]:
    """One of the values, as often as its weight says."""
    values = [value for value, weight in choices for _ in range(weight)]
    return _below(len(values)).map(values.__getitem__)


def _below(count: int) -> SearchStrategy[int]:
    from hypothesis import strategies as st

    return st.integers(_FAR, _FAR + count - 1).map(lambda i: i - _FAR)


def make_case(name: str, shape: CaseShape, vocab_size: int, rng: random.Random) -> Case:
    """Give a shape its token ids.

    Args:
        name: Name of the case.
        shape: The shape; a response grows by one token where chosen and rejected would be equal.
        vocab_size: Token ids are drawn from [0, vocab_size).
        rng: The generator of token ids.

    Returns:
        The case; ``why`` says its shape.
    """
    alphabet = {"two-tokens": 2, "one-token": 1}.get(shape.content)
    letters = rng.sample(range(vocab_size), alphabet) if alphabet else range(vocab_size)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.choice(letters) for _ in range(count))

    groups = []
    for num_prompt, num_chosen, num_rejected in shape.groups:
        prompt, chosen, rejected = tokens(num_prompt), tokens(num_chosen), tokens(num_rejected)
        if shape.content == "responses-begin-alike":
            start = tokens(min(num_chosen, num_rejected, 4))
            chosen, rejected = start + chosen[len(start) :], start + rejected[len(start) :]
        elif shape.content == "prefix":
            chosen = (rejected + chosen)[:num_chosen]
        elif shape.content == "repeats-the-prompt":
            chosen = (prompt + chosen)[:num_chosen]
        if chosen == rejected:  # a margin of zero proves nothing
            rejected = (*rejected, rng.choice(letters))
        groups.append(PreferenceGroup(prompt, (chosen,), (rejected,)))
    sizes = ", ".join(f"{len(g.prompt_ids)}+{len(g.positives[0])}+{len(g.negatives[0])}" for g in groups)
    return Case(name=name, why=f"{shape.content}: {sizes}", groups=tuple(groups))

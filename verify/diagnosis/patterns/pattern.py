"""What a pattern is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Evidence = TypeVar("Evidence")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that was found.

    Args:
        name: The name of the function that found it, with hyphens.
        sentence: What differs, in words.
    """

    name: str
    sentence: str


def found(tests: Sequence[Callable[[Evidence], str | None]], evidence: Evidence) -> tuple[Pattern, ...]:
    """Try every test.

    Args:
        tests: Functions that return a sentence, or None where their pattern is not there.
        evidence: What they look at.

    Returns:
        The patterns, in the order of the tests.
    """
    sentences = ((test.__name__.replace("_", "-"), test(evidence)) for test in tests)
    return tuple(Pattern(name, sentence) for name, sentence in sentences if sentence is not None)

"""Lengths by name, for plans without a data file."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from verify.packing_plan.costs import GroupLengths


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lengths whose logarithm is normal, rounded to whole tokens, at least one and at most ``longest``.

    Args:
        median: In tokens.
        sigma: Standard deviation of the natural logarithm; 0 makes every length the median.
        longest: Longer draws are set to this length.
    """

    median: float
    sigma: float
    longest: int

    def draw(self, generator: random.Random) -> int:
        """One length."""
        return min(self.longest, max(1, round(self.median * generator.lognormvariate(0.0, self.sigma))))

    def __str__(self) -> str:
        if not self.sigma:
            return f"{self.median:g}"
        return f"log-normal, median {self.median:g}, sigma {self.sigma:g}, at most {self.longest}"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Lengths of prompts and responses, all drawn independently."""

    prompt: LogNormal
    response: LogNormal

    def draw(self, num_groups: int, seed: int, responses: tuple[int, int] = (2, 2)) -> tuple[GroupLengths, ...]:
        """Draw groups.

        Args:
            num_groups: How many.
            seed: Seed of the generator.
            responses: Fewest and most responses of a group; every number between them is as likely.

        Returns:
            The groups; the same for the same seed.
        """
        generator = random.Random(seed)
        return tuple(
            GroupLengths(
                self.prompt.draw(generator),
                tuple(self.response.draw(generator) for _ in range(generator.randint(*responses))),
            )
            for _ in range(num_groups)
        )


def _fixed(prompt: int, response: int) -> Distribution:
    return Distribution(LogNormal(prompt, 0.0, prompt), LogNormal(response, 0.0, response))


# 64/192 for "response-long" is published; the other two are its mirror image and its mean.
DISTRIBUTIONS: Mapping[str, Distribution] = MappingProxyType(
    {
        "prompt-long": _fixed(192, 64),
        "balanced": _fixed(128, 128),
        "response-long": _fixed(64, 192),
        # Near UltraFeedback: short prompts and longer answers, both with a long tail.
        "log-normal": Distribution(LogNormal(110.0, 1.0, 2048), LogNormal(270.0, 0.7, 2048)),
    }
)


def named_distribution(name: str) -> Distribution:
    """The distribution of that name.

    Raises:
        ValueError: Unknown name; the message lists the known ones.
    """
    if name not in DISTRIBUTIONS:
        close = get_close_matches(name, DISTRIBUTIONS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(f"unknown distribution of lengths {name!r}{hint}: give one of {', '.join(DISTRIBUTIONS)}")
    return DISTRIBUTIONS[name]

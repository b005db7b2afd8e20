"""Decisions: which of two responses a reward prefers, packed against unpacked.

A margin above 0 is a decision for the preferred response, below 0 one for the rejected; 0 is a tie and counts as one
half. Two paths that differ by rounding decide alike except where a margin is as small as rounding: flips say how near
to the edge a batch was, and accuracy what they amount to. Neither is a mean of means: pairs of all cases count alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Counts over pairs of a preferred and a rejected response; they add up over cases.

    Args:
        num_pairs: Number of pairs.
        flipped: Pairs that the two paths decide otherwise, a tie against a decision included.
        ties: Pairs whose margin is exactly 0 on the path that is judged.
        halves_right: Twice the number of right decisions of that path, a tie counting as one half.
        expected_halves_right: The same of what is expected.
    """

    num_pairs: int
    flipped: int
    ties: int
    halves_right: int
    expected_halves_right: int


def decide(actual: Tensor, expected: Tensor) -> Decisions:
    """Compare decisions.

    Args:
        actual: Margins of the path that is judged, [pairs]; finite.
        expected: Those that are expected, [pairs].

    Returns:
        The counts.
    """
    signs, wanted = actual.sign(), expected.sign()
    return Decisions(
        num_pairs=len(actual),
        flipped=int((signs != wanted).sum()),
        ties=int((signs == 0).sum()),
        halves_right=int((signs + 1).sum()),
        expected_halves_right=int((wanted + 1).sum()),
    )


def total(parts: Iterable[Decisions]) -> Decisions:
    """Decisions of several cases together.

    Args:
        parts: Those of each case.

    Returns:
        Their sum.
    """
    listed = list(parts)
    return Decisions(
        num_pairs=sum(part.num_pairs for part in listed),
        flipped=sum(part.flipped for part in listed),
        ties=sum(part.ties for part in listed),
        halves_right=sum(part.halves_right for part in listed),
        expected_halves_right=sum(part.expected_halves_right for part in listed),
    )

"""The longest pair that fits: found by a search over lengths, in a handful of steps on paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from reports.cost_record import PathName
from verify.forecast.devices import DeviceProfile
from verify.forecast.forecast import optimizer_step, step_peak
from verify.forecast.paper_model import PaperModel
from verify.packing_plan.costs import GroupLengths

STEP = 64
"""Tokens of prompt and response together to which the search is exact."""


@dataclass(frozen=True, slots=True)
class LongestPair:
    """The longest pair of some proportions, alone on each rank.

    Args:
        prompt: Tokens of its prompt; 0 where not even the shortest pair fits.
        response: Tokens of each response; 0 likewise.
        peak_bytes: Of a rank's step on it, or on the shortest.
        limit: What stops a longer one: memory, or the positions that the model has.
    """

    prompt: int
    response: int
    peak_bytes: int
    limit: Literal["memory", "positions"]


def longest_pair(
    model: PaperModel, path: PathName, device: DeviceProfile, *, prompt: int, response: int, num_ranks: int
) -> LongestPair:
    """Search for the longest pair that fits, in steps of ``STEP`` tokens.

    Peak bytes grow with the length, nearly as a parabola: a parabola through what is known says where to look next.

    Args:
        model: The model.
        path: How log-probs are computed.
        device: The device of each rank.
        prompt: Of a pair of the proportions that are wanted.
        response: Likewise.
        num_ranks: Number of ranks.

    Returns:
        The pair.
    """
    optimizer = optimizer_step(model, num_ranks)

    def pair_of(steps: int) -> GroupLengths:
        total = steps * STEP
        of_prompt = min(max(1, round(total * prompt / (prompt + response))), total - 1)
        return GroupLengths(of_prompt, (total - of_prompt,) * 2)

    def peak(steps: int) -> int:
        return step_peak(model, model.step(path, [pair_of(steps)], for_peak=True), optimizer, num_ranks).total

    most = max(1, model.num_positions // STEP)
    first = min(most, max(1, (prompt + response) // STEP))
    found = last_below(device.usable_bytes, peak, most=most, first=first)
    if found.argument == 0:
        return LongestPair(0, 0, found.value, "memory")
    pair = pair_of(found.argument)
    return LongestPair(pair.prompt, pair.responses[0], found.value, "positions" if found.argument == most else "memory")


@dataclass(frozen=True, slots=True)
class Found:
    """An argument, 0 if there is none, and the value there; at 0 the value at 1."""

    argument: int
    value: int


def last_below(bound: int, value_at: Callable[[int], int], *, most: int, first: int) -> Found:
    """The last argument from 1 to ``most`` at which a growing function is no more than a bound.

    Args:
        bound: The bound.
        value_at: The function; each call is dear.
        most: The largest argument.
        first: Where to look first.

    Returns:
        The argument and its value.
    """
    known: dict[int, int] = {}

    def fits(argument: int) -> bool:
        known[argument] = value_at(argument)
        return known[argument] <= bound

    below, above = 0, most + 1
    guesses = [first, 2 * first, 4 * first]  # a parabola has three points
    while above - below > 1:
        guess = guesses.pop(0) if guesses else _parabola_reaches(bound, known)
        if guess in known:  # right, perhaps, which its neighbour proves
            guess = below + 1 if guess == below else above - 1
        guess = min(max(guess, below + 1), above - 1)
        if fits(guess):
            below = guess
        else:
            above, guesses = guess, guesses if len(known) < 2 else []
    if below == 0 and 1 not in known:
        known[1] = value_at(1)
    return Found(below, known[below or 1])


def _parabola_reaches(bound: int, known: dict[int, int]) -> int:
    """Where the parabola through the three values nearest to a bound reaches it, or the line through two."""
    points = sorted(sorted(known.items(), key=lambda item: abs(item[1] - bound))[:3])
    (x0, y0), (x1, y1) = points[0], points[-1]
    if len(points) == 2:
        return x0 + (bound - y0) * (x1 - x0) // max(1, y1 - y0)
    x2, y2 = points[1]
    slope_01, slope_02 = (y1 - y0) / (x1 - x0), (y2 - y0) / (x2 - x0)
    curve = (slope_01 - slope_02) / (x1 - x2)
    slope = slope_02 + curve * (x0 - x2)
    if abs(curve) < 1e-12:
        return x0 + int((bound - y0) / slope) if slope else x0
    root = max(0.0, slope * slope + 4 * curve * (bound - y0)) ** 0.5
    return x0 + int((root - slope) / (2 * curve))

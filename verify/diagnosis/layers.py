"""The first place in the decoder where a subject's hidden states differ from the unpacked path's beyond rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.diagnosis.alignment import (
    Tokens,
    gradient_distances,
    hidden_gradients,
    hidden_states,
    state_distances,
)
from verify.diagnosis.flow import ForwardCall

BEYOND_ROUNDING = 10.0
"""Times what harmless variations of the unpacked path show at the same place."""
_EPSILONS = 32

Calls = Sequence[ForwardCall]


@dataclass(frozen=True, slots=True)
class PlaceDifference:
    """One place of the decoder.

    Args:
        place: Its name.
        num_tokens: Tokens compared.
        differing: Ids of tokens beyond rounding.
        largest: Largest distance.
        rounding: Largest distance of a harmless variation.
    """

    place: str
    num_tokens: int
    differing: tuple[int, ...]
    largest: float
    rounding: float


class Yardstick:
    """Hidden states and gradients of the unpacked path, and what its harmless variations show, place by place.

    Args:
        witness: Passes of the unpacked path.
        variations: Passes of its harmless variations.
        tokens: Tracked tokens.
        epsilon: Machine epsilon of the dtype.
    """

    def __init__(self, witness: Calls, variations: Sequence[Calls], tokens: Tokens, epsilon: float) -> None:
        self._witness, self._variations, self._tokens, self._epsilon = witness, variations, tokens, epsilon
        self._rounding: dict[tuple[str, str], float] = {}

    def states(self, subject: Calls, places: Sequence[str]) -> tuple[PlaceDifference, ...]:
        """Compare a subject's hidden states.

        Args:
            subject: Passes of the subject.
            places: Names of places, in the order of computation.

        Returns:
            One entry for each place at which both sides have tokens.
        """
        return self._compare("states", subject, places)

    def gradients(self, subject: Calls, places: Sequence[str]) -> tuple[PlaceDifference, ...]:
        """Compare gradients of hidden states; arguments and result as :meth:`states`."""
        return self._compare("gradients", subject, places)

    def _distances(self, what: str, calls: Calls, place: str) -> dict[int, float]:
        collect, distance = (
            (hidden_states, state_distances) if what == "states" else (hidden_gradients, gradient_distances)
        )
        actual, expected = collect(calls, self._tokens, place), collect(self._witness, self._tokens, place)
        return {} if actual is None or expected is None else distance(actual, expected)

    def _compare(self, what: str, subject: Calls, places: Sequence[str]) -> tuple[PlaceDifference, ...]:
        found = []
        for place in places:
            distances = self._distances(what, subject, place)
            if not distances:
                continue
            if (what, place) not in self._rounding:
                of_variations = [self._distances(what, calls, place) for calls in self._variations]
                self._rounding[what, place] = max((max(d.values(), default=0.0) for d in of_variations), default=0.0)
            rounding = self._rounding[what, place]
            allowed = BEYOND_ROUNDING * max(rounding, _EPSILONS * self._epsilon)
            differing = tuple(sorted(token for token, distance in distances.items() if not distance <= allowed))
            found.append(PlaceDifference(place, len(distances), differing, max(distances.values()), rounding))
        return tuple(found)


def first_differing(places: Sequence[PlaceDifference]) -> PlaceDifference | None:
    """The first place at which some token differs."""
    return next((place for place in places if place.differing), None)


def backward_places(places: Sequence[str]) -> tuple[str, ...]:
    """Names of places in the order of the backward pass, with the projections whose gradients are seen.

    >>> backward_places(("embedding", "layer 0 attention", "layer 0 mlp", "final norm"))[:3]
    ('final norm', 'layer 0 mlp', 'layer 0 attention')
    """
    names: list[str] = []
    for place in reversed(places):
        names.append(place)
        if place.endswith(" attention"):
            layer = place.removesuffix(" attention")
            names += [f"{layer} {projection}" for projection in ("v_proj", "k_proj", "q_proj")]
    return tuple(names)

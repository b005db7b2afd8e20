"""Names of places where values stand, by meaning: which group, which response, which token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verify.groups import PreferenceGroup

PlaceName = Callable[[int], str]
"""Names the n-th value of a quantity."""


def completion_name(index: int, num_positives: int) -> str:
    """Name of a completion by its place in its group: "chosen", "rejected", or "negative 2"."""
    if num_positives == 1 and index < 2:
        return ("chosen", "rejected")[index]
    return f"positive {index}" if index < num_positives else f"negative {index - num_positives}"


def token_place(groups: Sequence[PreferenceGroup]) -> PlaceName:
    """Names the n-th supervised token of a case.

    A function, since names are made only for the few places that are shown.
    """
    supervised = [group.supervised for group in groups]

    def name(index: int) -> str:
        rest = index
        for g, group in enumerate(groups):
            for i, places in enumerate(supervised[g]):
                if rest < len(places):
                    token = places[rest]
                    predictor = "the last prompt token" if token == 0 else f"its token {token - 1}"
                    completion = completion_name(i, len(group.positives))
                    return f"group {g}, {completion}, token {token}, predicted from {predictor}"
                rest -= len(places)
        raise IndexError(f"supervised token {index} of a case that has {index - rest}")

    return name


def completion_place(groups: Sequence[PreferenceGroup]) -> PlaceName:
    """Names the n-th completion of a case."""

    def name(index: int) -> str:
        rest = index
        for g, group in enumerate(groups):
            if rest < len(group.completions):
                return f"group {g}, {completion_name(rest, len(group.positives))}"
            rest -= len(group.completions)
        raise IndexError(f"completion {index} of a case that has {index - rest}")

    return name


def pair_place(groups: Sequence[PreferenceGroup]) -> PlaceName:
    """Names the n-th pair of a case: its group, and in a larger one which positive against which negative."""

    def name(index: int) -> str:
        rest = index
        for g, group in enumerate(groups):
            num_negatives, num_pairs = len(group.negatives), len(group.positives) * len(group.negatives)
            if rest < num_pairs:
                positive, negative = divmod(rest, num_negatives)
                names = f", positive {positive} against negative {negative}" if num_pairs > 1 else ""
                return f"group {g}{names}"
            rest -= num_pairs
        raise IndexError(f"pair {index} of a case that has {index - rest}")

    return name

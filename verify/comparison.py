"""Measured differences. A comparison has no threshold: it says how far apart, where, and over how many values.

The order is fixed: same keys both ways, same shapes, counts above zero, all finite, then values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verify.groups import PreferenceGroup
from verify.observation import Observation

Quantity = Literal["per_token_logps", "ref_per_token_logps", "rewards", "margins", "loss", "gradients"]
QUANTITIES: tuple[Quantity, ...] = (
    "per_token_logps", "ref_per_token_logps", "rewards", "margins", "loss", "gradients",
)  # fmt: skip

_PLACES_KEPT = 3
_NOTHING = 1e-12
"""RMS of a float64 gradient, relative to that of all, below which it is rounding."""
_PlaceName = Callable[[int], str]
_Values = npt.NDArray[np.float64]


class StructureError(Exception):
    """The two sides do not hold the same things, so that values cannot be compared."""


@dataclass(frozen=True, slots=True)
class Place:
    """One compared value, named by meaning."""

    where: str
    actual: float
    expected: float

    @property
    def difference(self) -> float:
        """Absolute difference; NaN where either side is NaN."""
        return abs(self.actual - self.expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Distance between two observations in one quantity.

    Args:
        quantity: What was compared.
        part: Parameter name for gradients, else "".
        num_compared: Number of values; above 0.
        max: Largest absolute difference. For gradients divided by the RMS of the true tensor.
        rms: Root mean square difference. For gradients the relative L2 norm ||actual - expected|| / ||truth||.
        signed_mean: Mean of actual minus expected (drift), in the unit of ``rms``.
        cosine: Cosine between the two (gradients), NaN elsewhere.
        norm_ratio: ||actual|| / ||expected|| (gradients), NaN elsewhere.
        peak: Largest expected value over the RMS of the true tensor (gradients, at least 1), 1 elsewhere.
        worst: Places of the largest differences, largest first.
        non_finite: First place where the actual value is NaN or infinite, or None.
    """

    quantity: Quantity
    part: str
    num_compared: int
    max: float
    rms: float
    signed_mean: float
    cosine: float
    norm_ratio: float
    peak: float
    worst: tuple[Place, ...]
    non_finite: Place | None


def compare_observations(
    actual: Observation, expected: Observation, groups: Sequence[PreferenceGroup], *, truth: Observation | None = None
) -> tuple[Comparison, ...]:
    """Compare every quantity that both sides hold.

    Args:
        actual: Observation of a subject, or of a variation of the witness.
        expected: Observation of the oracle, or of the witness.
        groups: The case's groups, for naming places.
        truth: The observation whose gradients differences are relative to, the oracle's; ``expected`` if None. A
            gradient that cancels to nothing is rounding noise in every dtype, and no scale: only the oracle can tell.

    Returns:
        One comparison for each vector quantity, and one for each LoRA tensor. Gradients are left out only where
        ``actual`` gives a reason for their absence.

    Raises:
        StructureError: A part is on one side only, shapes differ, nothing to compare, or the expected value itself
            is not finite.
    """
    token = sum(sum(group.num_supervised) for group in groups), token_place(groups)
    comparisons = [_compare_vectors("per_token_logps", actual.per_token_logps, expected.per_token_logps, *token)]
    if expected.ref_per_token_logps or actual.ref_per_token_logps:  # neither side has any under SFT
        completion = sum(len(group.completions) for group in groups), _completion_place(groups)
        pair = sum(len(group.positives) * len(group.negatives) for group in groups), pair_place(groups)
        comparisons += [
            _compare_vectors("ref_per_token_logps", actual.ref_per_token_logps, expected.ref_per_token_logps, *token),
            _compare_vectors("rewards", [actual.rewards], [expected.rewards], *completion),
            _compare_vectors("margins", [actual.margins], [expected.margins], *pair),
        ]
    comparisons.append(_compare_vectors("loss", [actual.loss.reshape(1)], [expected.loss.reshape(1)], 1, _whole_place))
    return (*comparisons, *_compare_gradients(actual, expected, truth or expected))


def compare_logps(
    actual: Sequence[Tensor], expected: Sequence[Tensor], groups: Sequence[PreferenceGroup]
) -> Comparison:
    """Compare log-probs alone.

    Args:
        actual: Those of the supervised tokens; one float64 vector per completion.
        expected: The same.
        groups: The case's groups, for naming places.

    Returns:
        The comparison.

    Raises:
        StructureError: As :func:`compare_observations`.
    """
    num_tokens = sum(sum(group.num_supervised) for group in groups)
    return _compare_vectors("per_token_logps", actual, expected, num_tokens, token_place(groups))


def _compare_gradients(actual: Observation, expected: Observation, truth: Observation) -> tuple[Comparison, ...]:
    if actual.gradients is None:
        if not actual.gradients_absent_because:
            raise StructureError("gradients are missing without a reason")
        return ()
    if not expected.gradients:
        raise StructureError("expected gradients are missing or empty: nothing would be compared")
    missing = sorted(expected.gradients.keys() - actual.gradients.keys())
    unexpected = sorted(actual.gradients.keys() - expected.gradients.keys())
    if missing or unexpected:
        raise StructureError(
            "gradients are not of the same LoRA tensors: "
            + "; ".join(
                f"{side} {', '.join(names[:3])}{' …' if len(names) > 3 else ''} ({len(names)})"
                for side, names in (("missing", missing), ("unexpected", unexpected))
                if names
            )
        )
    return _compare_tensors(actual.gradients, expected.gradients, _sizes(truth.gradients or expected.gradients))


def _sizes(gradients: Mapping[str, Tensor]) -> dict[str, float]:
    """RMS of each tensor, by which its differences are divided; that of all tensors for one which is zero beside them.

    Attention over a single kind of token, or a single token, has no gradient at its queries and keys: what is there is
    rounding. Relative to itself, any other rounding would be infinitely far.
    """
    squares = {name: float(tensor.square().sum()) for name, tensor in gradients.items()}
    of_all = math.sqrt(sum(squares.values()) / max(1, sum(tensor.numel() for tensor in gradients.values())))
    own = {name: math.sqrt(squares[name] / max(1, tensor.numel())) for name, tensor in gradients.items()}
    return {name: size if size > _NOTHING * of_all else of_all for name, size in own.items()}


def _compare_vectors(
    quantity: Quantity, actual: Sequence[Tensor], expected: Sequence[Tensor], num_values: int, place: _PlaceName
) -> Comparison:
    actual_shapes, expected_shapes = [tuple(t.shape) for t in actual], [tuple(t.shape) for t in expected]
    if actual_shapes != expected_shapes:
        raise StructureError(f"{quantity}: shapes {actual_shapes}; expected {expected_shapes}")
    if not expected_shapes:
        raise StructureError(f"{quantity}: empty, nothing would be compared")
    a, e = (np.concatenate([tensor.numpy() for tensor in side]) for side in (actual, expected))
    if num_values != a.size:
        raise StructureError(f"{quantity}: {a.size} values for {num_values} places")
    if e.size == 0:
        raise StructureError(f"{quantity}: empty, nothing would be compared")
    if not np.isfinite(e).all():
        raise StructureError(f"{quantity}: the expected value itself is not finite")
    with np.errstate(all="ignore"):  # a subject's infinities and NaN are measured, not warned about
        difference = a - e
        mean, mean_square = float(difference.mean()), float((difference * difference).mean())
    distance = np.abs(difference)
    return Comparison(
        quantity=quantity,
        part="",
        num_compared=a.size,
        max=float(distance.max()),
        rms=math.sqrt(mean_square),
        signed_mean=mean,
        cosine=math.nan,
        norm_ratio=math.nan,
        peak=1.0,
        worst=_worst_places(distance, a, e, place),
        non_finite=_first_non_finite(a, e, place),
    )


def _compare_tensors(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], sizes_of: Mapping[str, float]
) -> tuple[Comparison, ...]:
    """One comparison per tensor, from one pass over all of them: there are hundreds, most of them small."""
    for name, tensor in expected.items():
        if actual[name].shape != tensor.shape:
            raise StructureError(
                f"gradient of {name}: shape {tuple(actual[name].shape)}; expected {tuple(tensor.shape)}"
            )
        if tensor.numel() == 0:
            raise StructureError(f"gradient of {name}: empty, nothing would be compared")
    a = torch.cat([actual[name].reshape(-1) for name in expected]).numpy()
    e = torch.cat([tensor.reshape(-1) for tensor in expected.values()]).numpy()
    sizes = np.array([tensor.numel() for tensor in expected.values()])
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    if not np.isfinite(e).all():
        first = int(np.searchsorted(starts, np.flatnonzero(~np.isfinite(e))[0], side="right")) - 1
        raise StructureError(f"gradient of {list(expected)[first]}: the expected value itself is not finite")
    all_finite = bool(np.isfinite(a).all())
    difference = a - e
    distance = np.abs(difference)
    sums = {
        "difference": np.add.reduceat(difference, starts),
        "squared": np.add.reduceat(difference * difference, starts),
        "actual": np.add.reduceat(a * a, starts),
        "expected": np.add.reduceat(e * e, starts),
        "product": np.add.reduceat(a * e, starts),
    }
    largest, peak = np.maximum.reduceat(distance, starts), np.maximum.reduceat(np.abs(e), starts)
    comparisons = []
    for i, (name, tensor) in enumerate(expected.items()):
        part = slice(int(starts[i]), int(starts[i] + sizes[i]))
        norm_a, norm_e = math.sqrt(sums["actual"][i]), math.sqrt(sums["expected"][i])
        root = math.sqrt(int(sizes[i]))
        scale = _relative_to(norm_a, sizes_of[name])
        place = _gradient_place(name, tensor.shape[-1])
        worst = int(np.argmax(np.where(np.isnan(distance[part]), np.inf, distance[part])))
        comparisons.append(
            Comparison(
                quantity="gradients",
                part=name,
                num_compared=int(sizes[i]),
                max=float(largest[i]) * scale,
                rms=math.sqrt(sums["squared"][i]) / root * scale,
                signed_mean=float(sums["difference"][i]) / (root * root) * scale,
                cosine=float(sums["product"][i]) / (norm_a * norm_e) if norm_a > 0 and norm_e > 0 else math.nan,
                norm_ratio=norm_a / norm_e if norm_e > 0 else math.nan,
                peak=max(1.0, float(peak[i]) * scale) if norm_e > 0 else 1.0,
                worst=(Place(place(worst), float(a[part][worst]), float(e[part][worst])),),
                non_finite=None if all_finite else _first_non_finite(a[part], e[part], place),
            )
        )
    return tuple(comparisons)


def _relative_to(norm_actual: float, size: float) -> float:
    """Factor that makes a distance relative to the true tensor.

    Where all true gradients are zero there is no scale: equal zeros are at distance 0, anything else is infinitely far.
    """
    if size > 0:
        return 1 / size
    return 0.0 if norm_actual == 0 else math.inf


def _gradient_place(name: str, columns: int) -> _PlaceName:
    return lambda index: f"{name}[{index // columns}, {index % columns}]"


def _first_non_finite(actual: _Values, expected: _Values, place: _PlaceName) -> Place | None:
    bad = np.flatnonzero(~np.isfinite(actual))
    if bad.size == 0:
        return None
    index = int(bad[0])
    return Place(place(index), float(actual[index]), float(expected[index]))


def _worst_places(distance: _Values, actual: _Values, expected: _Values, place: _PlaceName) -> tuple[Place, ...]:
    """The places of the largest distances, NaN before all others."""
    order = np.argsort(np.where(np.isnan(distance), -np.inf, -distance), kind="stable")[:_PLACES_KEPT]
    return tuple(Place(place(i), float(actual[i]), float(expected[i])) for i in order.tolist())


def completion_name(index: int, num_positives: int) -> str:
    """Name of a completion by its place in its group: "chosen", "rejected", or "negative 2"."""
    if num_positives == 1 and index < 2:
        return ("chosen", "rejected")[index]
    return f"positive {index}" if index < num_positives else f"negative {index - num_positives}"


def token_place(groups: Sequence[PreferenceGroup]) -> _PlaceName:
    """Names the n-th supervised token of a case.

    A function, since names are made only for the few places that are shown.
    """

    def name(index: int) -> str:
        rest = index
        for g, group in enumerate(groups):
            for i, places in enumerate(group.supervised):
                if rest < len(places):
                    token = places[rest]
                    predictor = "the last prompt token" if token == 0 else f"its token {token - 1}"
                    completion = completion_name(i, len(group.positives))
                    return f"group {g}, {completion}, token {token}, predicted from {predictor}"
                rest -= len(places)
        raise IndexError(f"supervised token {index} of a case that has {index - rest}")

    return name


def _completion_place(groups: Sequence[PreferenceGroup]) -> _PlaceName:
    def name(index: int) -> str:
        rest = index
        for g, group in enumerate(groups):
            if rest < len(group.completions):
                return f"group {g}, {completion_name(rest, len(group.positives))}"
            rest -= len(group.completions)
        raise IndexError(f"completion {index} of a case that has {index - rest}")

    return name


def pair_place(groups: Sequence[PreferenceGroup]) -> _PlaceName:
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


def _whole_place(_index: int) -> str:
    return "loss"

"""Measured differences. A comparison has no threshold: it says how far apart, where, and over how many values.

The order is fixed: same keys both ways, same shapes, counts above zero, all finite, then values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from verify.groups import PreferenceGroup
from verify.observation import Observation

Quantity = Literal["per_token_logps", "ref_per_token_logps", "rewards", "margins", "loss", "gradients"]
QUANTITIES: tuple[Quantity, ...] = (
    "per_token_logps", "ref_per_token_logps", "rewards", "margins", "loss", "gradients",
)  # fmt: skip

_PLACES_KEPT = 3
_PlaceName = Callable[[int], str]


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
        max: Largest absolute difference. For gradients divided by the RMS of the expected tensor.
        rms: Root mean square difference. For gradients the relative L2 norm ||actual - expected|| / ||expected||.
        signed_mean: Mean of actual minus expected (drift), in the unit of ``rms``.
        cosine: Cosine between the two (gradients), NaN elsewhere.
        norm_ratio: ||actual|| / ||expected|| (gradients), NaN elsewhere.
        peak: Largest expected value over the RMS of the expected values (gradients), 1 elsewhere.
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
    actual: Observation, expected: Observation, groups: Sequence[PreferenceGroup]
) -> tuple[Comparison, ...]:
    """Compare every quantity that both sides hold.

    Args:
        actual: Observation of a subject, or of a variation of the witness.
        expected: Observation of the oracle, or of the witness.
        groups: The case's groups, for naming places.

    Returns:
        One comparison for each vector quantity, and one for each LoRA tensor. Gradients are left out only where
        ``actual`` gives a reason for their absence.

    Raises:
        StructureError: A part is on one side only, shapes differ, nothing to compare, or the expected value itself
            is not finite.
    """
    token_places = [
        (g, i, t, len(group.positives))
        for g, group in enumerate(groups)
        for i, ids in enumerate(group.completions)
        for t in range(len(ids))
    ]
    completion_places = [(g, i, len(gr.positives)) for g, gr in enumerate(groups) for i in range(len(gr.completions))]
    names = {
        "token": [_token_place(*place) for place in token_places],
        "completion": [f"group {g}, {_completion_name(i, m)}" for g, i, m in completion_places],
        "pair": [f"group {g}" for g in range(len(groups))],
    }
    comparisons = [
        _compare_vectors("per_token_logps", actual.per_token_logps, expected.per_token_logps, names["token"]),
        _compare_vectors(
            "ref_per_token_logps", actual.ref_per_token_logps, expected.ref_per_token_logps, names["token"]
        ),
        _compare_vectors("rewards", [actual.rewards], [expected.rewards], names["completion"]),
        _compare_vectors("margins", [actual.margins], [expected.margins], names["pair"]),
        _compare_vectors("loss", [actual.loss.reshape(1)], [expected.loss.reshape(1)], ["loss"]),
    ]  # fmt: skip
    return (*comparisons, *_compare_gradients(actual, expected))


def _compare_gradients(actual: Observation, expected: Observation) -> tuple[Comparison, ...]:
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
    return tuple(
        _compare_gradient(name, actual.gradients[name], gradient) for name, gradient in expected.gradients.items()
    )


def _compare_vectors(
    quantity: Quantity, actual: Sequence[Tensor], expected: Sequence[Tensor], names: Sequence[str]
) -> Comparison:
    actual_shapes, expected_shapes = [tuple(t.shape) for t in actual], [tuple(t.shape) for t in expected]
    if actual_shapes != expected_shapes:
        raise StructureError(f"{quantity}: shapes {actual_shapes}; expected {expected_shapes}")
    if not expected_shapes:
        raise StructureError(f"{quantity}: empty, nothing would be compared")
    a, e = torch.cat(list(actual)), torch.cat(list(expected))
    if len(names) != a.numel():
        raise StructureError(f"{quantity}: {a.numel()} values for {len(names)} places")
    difference = _checked_difference(quantity, a, e)
    return Comparison(
        quantity=quantity,
        part="",
        num_compared=a.numel(),
        max=float(difference.abs().max()),
        rms=float(difference.square().mean().sqrt()),
        signed_mean=float(difference.mean()),
        cosine=math.nan,
        norm_ratio=math.nan,
        peak=1.0,
        worst=_worst_places(difference, a, e, lambda i: names[i]),
        non_finite=_first_non_finite(a, e, lambda i: names[i]),
    )


def _compare_gradient(name: str, actual: Tensor, expected: Tensor) -> Comparison:
    if actual.shape != expected.shape:
        raise StructureError(f"gradient of {name}: shape {tuple(actual.shape)}; expected {tuple(expected.shape)}")
    columns = expected.shape[-1]
    a, e = actual.reshape(-1), expected.reshape(-1)
    difference = _checked_difference(f"gradient of {name}", a, e)
    norm_e, norm_a = float(e.norm()), float(a.norm())
    # An expected gradient of zero leaves no scale: the distance is 0 for equal zeros, infinite otherwise.
    scale = norm_e if norm_e > 0 else (math.inf if norm_a == 0 else 0.0)
    root = math.sqrt(e.numel())

    def relative(value: float) -> float:
        return value / scale if scale > 0 else math.inf

    def place(index: int) -> str:
        return f"{name}[{index // columns}, {index % columns}]"

    return Comparison(
        quantity="gradients",
        part=name,
        num_compared=e.numel(),
        max=relative(float(difference.abs().max()) * root),
        rms=relative(float(difference.norm())),
        signed_mean=relative(float(difference.mean()) * root),
        cosine=float(a @ e) / (norm_a * norm_e) if norm_a > 0 and norm_e > 0 else math.nan,
        norm_ratio=norm_a / norm_e if norm_e > 0 else math.nan,
        peak=float(e.abs().max()) * root / norm_e if norm_e > 0 else 1.0,
        worst=_worst_places(difference, a, e, place),
        non_finite=_first_non_finite(a, e, place),
    )


def _checked_difference(what: str, actual: Tensor, expected: Tensor) -> Tensor:
    if expected.numel() == 0:
        raise StructureError(f"{what}: empty, nothing would be compared")
    if not bool(torch.isfinite(expected).all()):
        raise StructureError(f"{what}: the expected value itself is not finite")
    return actual - expected


def _first_non_finite(actual: Tensor, expected: Tensor, place: _PlaceName) -> Place | None:
    bad = (~torch.isfinite(actual)).nonzero().reshape(-1)
    if bad.numel() == 0:
        return None
    index = int(bad[0])
    return Place(place(index), float(actual[index]), float(expected[index]))


def _worst_places(difference: Tensor, actual: Tensor, expected: Tensor, place: _PlaceName) -> tuple[Place, ...]:
    size = difference.abs().nan_to_num(nan=math.inf, posinf=math.inf)
    order = size.topk(min(_PLACES_KEPT, size.numel())).indices.tolist()
    return tuple(Place(place(i), float(actual[i]), float(expected[i])) for i in order)


def _completion_name(index: int, num_positives: int) -> str:
    if num_positives == 1 and index < 2:
        return ("chosen", "rejected")[index]
    return f"positive {index}" if index < num_positives else f"negative {index - num_positives}"


def _token_place(group: int, completion: int, token: int, num_positives: int) -> str:
    predictor = "the last prompt token" if token == 0 else f"its token {token - 1}"
    name = _completion_name(completion, num_positives)
    return f"group {group}, {name}, token {token}, predicted from {predictor}"

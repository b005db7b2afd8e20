"""Measured differences. A comparison has no threshold: it says how far apart, where, and over how many values.

The order is fixed: same keys both ways, same shapes, counts above zero, all finite, then values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verify.groups import PreferenceGroup, tokens_taking_part
from verify.observation import Observation
from verify.places import PlaceName, completion_place, pair_place, token_place

Quantity = Literal[
    "per_token_logps", "ref_per_token_logps", "router_probs", "router_shares", "rewards", "margins", "loss", "gradients"
]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)

_PLACES_KEPT = 3
_NOTHING = 1e-12
"""RMS of a float64 gradient, relative to that of all, below which it is rounding."""
_Values = npt.NDArray[np.float64]
_Indices = npt.NDArray[np.intp]


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

    def __reduce__(self) -> tuple[type[Place], tuple[str, float, float]]:
        """For pickle: a run hands over tens of thousands, and the way of dataclasses takes twice as long."""
        return Place, (self.where, self.actual, self.expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Distance between two observations in one quantity.

    Args:
        quantity: What was compared.
        part: Parameter name for gradients, else "".
        num_compared: Number of values; above 0.
        max: Largest absolute difference. For gradients divided by the RMS of the true tensor.
        rms: Root mean square difference. For gradients the relative L2 norm ||actual - expected|| / ||truth||;
            infinite, as ``max``, where a row of the embedding has one whose token takes no part.
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

    def __reduce__(self) -> tuple[Callable[..., Comparison], tuple[object, ...]]:
        """As :meth:`Place.__reduce__`."""
        return _comparison_of, _fields_of(self)


_FIELDS = tuple(each.name for each in fields(Comparison))
_fields_of = attrgetter(*_FIELDS)


def _comparison_of(*values: Any) -> Comparison:
    return Comparison(**dict(zip(_FIELDS, values, strict=True)))


def compare_observations(
    actual: Observation,
    expected: Observation,
    groups: Sequence[PreferenceGroup],
    *,
    sizes: Mapping[str, float] | None = None,
) -> tuple[Comparison, ...]:
    """Compare every quantity that both sides hold.

    Args:
        actual: Observation of a subject, or of a variation of the witness.
        expected: Observation of the oracle, or of the witness.
        groups: The case's groups, for naming places.
        sizes: What differences of gradients are relative to: the :func:`gradient_sizes` of the oracle; those of
            ``expected`` if None. A gradient that cancels to nothing is rounding noise in every dtype, and no scale:
            only the oracle can tell.

    Returns:
        One comparison for each vector quantity, and one for each trained tensor. Gradients are left out only where
        ``actual`` gives a reason for their absence.

    Raises:
        StructureError: A part is on one side only, shapes differ, nothing to compare, or the expected value itself
            is not finite.
    """
    token = sum(sum(group.num_supervised) for group in groups), token_place(groups)
    comparisons: list[Comparison] = []
    if expected.per_token_logps or actual.per_token_logps or not len(expected.rewards):  # a reward model has none
        comparisons.append(
            _compare_vectors("per_token_logps", actual.per_token_logps, expected.per_token_logps, *token)
        )
    if expected.ref_per_token_logps or actual.ref_per_token_logps:  # neither side has any without a frozen policy
        comparisons.append(
            _compare_vectors("ref_per_token_logps", actual.ref_per_token_logps, expected.ref_per_token_logps, *token)
        )
    if expected.balance and actual.balance:  # a subject may keep it to itself
        expert = len(expected.balance.probs), "the mean over all tokens and layers of expert {}".format
        comparisons += [
            _compare_vectors("router_probs", [actual.balance.probs], [expected.balance.probs], *expert),
            _compare_vectors("router_shares", [actual.balance.shares], [expected.balance.shares], *expert),
        ]
    if len(expected.rewards) or len(actual.rewards):  # neither side has any under SFT
        completion = sum(len(group.completions) for group in groups), completion_place(groups)
        pair = sum(len(group.positives) * len(group.negatives) for group in groups), pair_place(groups)
        comparisons += [
            _compare_vectors("rewards", [actual.rewards], [expected.rewards], *completion),
            _compare_vectors("margins", [actual.margins], [expected.margins], *pair),
        ]
    comparisons.append(_compare_vectors("loss", [actual.loss.reshape(1)], [expected.loss.reshape(1)], 1, _whole_place))
    return (*comparisons, *_compare_gradients(actual, expected, groups, sizes))


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


def _compare_gradients(
    actual: Observation,
    expected: Observation,
    groups: Sequence[PreferenceGroup],
    sizes: Mapping[str, float] | None,
) -> tuple[Comparison, ...]:
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
            "gradients are not of the same tensors: "
            + "; ".join(
                f"{side} {', '.join(names[:3])}{' …' if len(names) > 3 else ''} ({len(names)})"
                for side, names in (("missing", missing), ("unexpected", unexpected))
                if names
            )
        )
    sizes = sizes or gradient_sizes(expected.gradients)
    compared = _compare_tensors(actual.gradients, expected.gradients, sizes)
    name = expected.looked_up
    if name not in expected.gradients:
        return compared
    taking_part = tokens_taking_part(groups, is_reward_model=not expected.per_token_logps)
    misplaced = _at_unused_rows(actual.gradients[name], expected.gradients[name], name, taking_part)
    if misplaced is None:
        return compared
    return tuple(replace(c, max=math.inf, rms=math.inf, worst=(misplaced,)) if c.part == name else c for c in compared)


def gradient_sizes(gradients: Mapping[str, Tensor]) -> dict[str, float]:
    """RMS of each tensor, by which its differences are divided; that of all tensors for one which is zero beside them.

    Attention over a single kind of token, or a single token, has no gradient at its queries and keys: what is there is
    rounding. Relative to itself, any other rounding would be infinitely far.

    Args:
        gradients: The gradients by name.

    Returns:
        As many sizes.
    """
    squares = {name: float(tensor.square().sum()) for name, tensor in gradients.items()}
    of_all = math.sqrt(sum(squares.values()) / max(1, sum(tensor.numel() for tensor in gradients.values())))
    own = {name: math.sqrt(squares[name] / max(1, tensor.numel())) for name, tensor in gradients.items()}
    return {name: size if size > _NOTHING * of_all else of_all for name, size in own.items()}


def _compare_vectors(
    quantity: Quantity, actual: Sequence[Tensor], expected: Sequence[Tensor], num_values: int, place: PlaceName
) -> Comparison:
    actual_shapes, expected_shapes = [tuple(t.shape) for t in actual], [tuple(t.shape) for t in expected]
    if actual_shapes != expected_shapes:
        raise StructureError(f"{quantity}: shapes {actual_shapes}; expected {expected_shapes}")
    if not expected_shapes:
        raise StructureError(f"{quantity}: empty, nothing would be compared")
    a, e = (torch.cat(list(side)).numpy() for side in (actual, expected))
    if num_values != a.size:
        raise StructureError(f"{quantity}: {a.size} values for {num_values} places")
    if e.size == 0:
        raise StructureError(f"{quantity}: empty, nothing would be compared")
    if not np.isfinite(e).all():
        raise StructureError(f"{quantity}: the expected value itself is not finite")
    with np.errstate(all="ignore"):  # a subject's infinities and NaN are measured, not warned about
        difference = a - e
        mean, mean_square = (float(np.add.reduce(of)) / a.size for of in (difference, difference * difference))
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
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], sizes: Mapping[str, float]
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
    counts = np.array([tensor.numel() for tensor in expected.values()])
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    if not np.isfinite(e).all():
        first = int(np.searchsorted(starts, np.flatnonzero(~np.isfinite(e))[0], side="right")) - 1
        raise StructureError(f"gradient of {list(expected)[first]}: the expected value itself is not finite")
    all_finite = bool(np.isfinite(a).all())
    measured = _measure_tensors(a, e, starts, counts, np.array([sizes[name] for name in expected]))
    comparisons = []
    for i, (name, tensor) in enumerate(expected.items()):
        place, start, worst = _gradient_place(name, tensor.shape[-1]), int(starts[i]), measured.worst[i]
        part = slice(start, start + tensor.numel())
        comparisons.append(
            Comparison(
                quantity="gradients",
                part=name,
                num_compared=tensor.numel(),
                max=measured.max[i],
                rms=measured.rms[i],
                signed_mean=measured.signed_mean[i],
                cosine=measured.cosine[i],
                norm_ratio=measured.norm_ratio[i],
                peak=measured.peak[i],
                worst=(Place(place(worst - start), float(a[worst]), float(e[worst])),),
                non_finite=None if all_finite else _first_non_finite(a[part], e[part], place),
            )
        )
    return tuple(comparisons)


def _at_unused_rows(actual: Tensor, expected: Tensor, name: str, taking_part: frozenset[int]) -> Place | None:
    """The first gradient in a row of an embedding, looked up and no more, whose token takes no part.

    It is infinitely far, however small beside those of other rows. A true gradient of zero alone is no sign: under a
    sliding window the start of a prompt may reach only what two responses begin with alike, and its terms cancel. In an
    embedding that is tied to the head those of all rows may, with two responses of one token.
    """
    unused = ~expected.any(dim=-1, keepdim=True)
    unused[[token for token in taking_part if token < len(unused)]] = False
    found = ((actual != 0) & unused).nonzero()
    if not len(found):
        return None
    row, column = found[0].tolist()
    where = f"{name}[{row}, {column}], the row of a token that takes no part: exactly 0"
    return Place(where, float(actual[row, column]), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfTensors:
    """As in :class:`Comparison`, one value for each tensor; ``worst`` counts from the start of all."""

    max: list[float]
    rms: list[float]
    signed_mean: list[float]
    cosine: list[float]
    norm_ratio: list[float]
    peak: list[float]
    worst: list[int]


def _measure_tensors(a: _Values, e: _Values, starts: _Indices, counts: _Indices, sizes: _Values) -> _OfTensors:
    """Measure tensors that lie one behind the other in two vectors.

    Where all true gradients are zero there is no scale: equal zeros are at distance 0, anything else is infinitely far.

    Args:
        a: Actual values.
        e: Expected values, finite.
        starts: Where each tensor begins.
        counts: How many values each has.
        sizes: What the differences of each are divided by.
    """
    with np.errstate(all="ignore"):  # a subject's infinities and NaN are measured, not warned about
        difference, roots = a - e, np.sqrt(counts)
        distance = np.abs(difference)
        norms_a, norms_e = (np.sqrt(np.add.reduceat(side * side, starts)) for side in (a, e))
        scales = np.where(sizes > 0, 1 / sizes, np.where(norms_a == 0, 0.0, math.inf))
        known = np.where(np.isnan(distance), math.inf, distance)
        largest = np.flatnonzero(known == np.repeat(np.maximum.reduceat(known, starts), counts))
        cosines = np.add.reduceat(a * e, starts) / (norms_a * norms_e)
        peaks = np.fmax(1.0, np.maximum.reduceat(np.abs(e), starts) * scales)
        return _OfTensors(
            max=(np.maximum.reduceat(distance, starts) * scales).tolist(),
            rms=(np.sqrt(np.add.reduceat(difference * difference, starts)) / roots * scales).tolist(),
            signed_mean=(np.add.reduceat(difference, starts) / (roots * roots) * scales).tolist(),
            cosine=np.where((norms_a > 0) & (norms_e > 0), cosines, math.nan).tolist(),
            norm_ratio=np.where(norms_e > 0, norms_a / norms_e, math.nan).tolist(),
            peak=np.where(norms_e > 0, peaks, 1.0).tolist(),
            worst=largest[np.searchsorted(largest, starts)].tolist(),
        )


def _gradient_place(name: str, columns: int) -> PlaceName:
    return lambda index: f"{name}[{index // columns}, {index % columns}]"


def _first_non_finite(actual: _Values, expected: _Values, place: PlaceName) -> Place | None:
    bad = np.flatnonzero(~np.isfinite(actual))
    if bad.size == 0:
        return None
    index = int(bad[0])
    return Place(place(index), float(actual[index]), float(expected[index]))


def _worst_places(distance: _Values, actual: _Values, expected: _Values, place: PlaceName) -> tuple[Place, ...]:
    """The places of the largest distances, NaN before all others."""
    order = np.argsort(np.where(np.isnan(distance), -np.inf, -distance), kind="stable")[:_PLACES_KEPT]
    return tuple(Place(place(i), float(actual[i]), float(expected[i])) for i in order.tolist())


def _whole_place(_index: int) -> str:
    return "loss"

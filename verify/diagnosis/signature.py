"""Signatures of faults and the distance between two of them.

A signature is everything in which a computation differs from the unpacked one on a case; what lies within its budget
counts as zero. The distance has five parts: policy log-probs, reference log-probs, rewards, loss, gradients. A part
in which neither side differs is left out; the others are averaged. Log-probs that are right, of a subject whose own
loss shows none, are left out too: they come from other passes, and do not say what the loss was made of.

    distance of values x, y   ||x - y|| / (||x|| + ||y||)          0 the same, 1 one of them zero or both opposite
    log-probs                 mean of that and of the Jaccard distance of the sets of differing tokens
    rewards, loss             that
    gradients                 mean of that and of the mean distance of (norm ratio, cosine) over the tensors
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from verify.diagnosis.differences import Differences, GradientDifference
from verify.observation import Observation

_RIGHT_TENSOR = torch.tensor([0.5, 1.0], dtype=torch.float64)
"""Features of a trained tensor whose gradient is right: norm ratio, squeezed, and cosine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Differences with rounding taken out, flattened.

    Args:
        logps: Policy, [N]; 0 where within budget, and where not finite; empty of a reward model.
        logps_beyond: Which tokens differ, bool [N].
        ref_logps: The same of the reference; empty where there is none.
        ref_logps_beyond: bool, as ``ref_logps``.
        rewards: [K]; empty under SFT.
        loss: [1].
        gradients: All trained tensors, flat; zeros where no tensor differs, and where not finite.
        tensors: Norm ratio and cosine of each trained tensor, [tensors, 2].
        logps_apart: Whether the log-probs come from other passes than the loss.
    """

    logps: Tensor
    logps_beyond: Tensor
    ref_logps: Tensor
    ref_logps_beyond: Tensor
    rewards: Tensor
    loss: Tensor
    gradients: Tensor
    tensors: Tensor
    logps_apart: bool = False

    @property
    def tells_nothing(self) -> bool:
        """Whether no single value differs: only an RMS is beyond its budget, or nothing is."""
        values = (self.logps, self.logps_beyond, self.ref_logps, self.ref_logps_beyond, self.rewards, self.loss)
        return not any(bool(part.any()) for part in (*values, self.gradients, self.tensors != _RIGHT_TENSOR))


def signature_of(differences: Differences, actual: Observation, expected: Observation) -> Signature:
    """The signature of measured differences.

    Args:
        differences: Of ``actual`` from ``expected``.
        actual: The observation.
        expected: The unpacked path's.

    Returns:
        The signature.
    """
    zero = torch.zeros(1, dtype=torch.float64)
    gradients, tensors = zero, torch.zeros(0, 2, dtype=torch.float64)
    if differences.gradients and expected.gradients is not None and actual.gradients is not None:
        parts = [
            (actual.gradients.get(name, torch.zeros_like(expected.gradients[name])) - expected.gradients[name]).reshape(
                -1
            )
            * float(gradient.beyond)
            for name, gradient in differences.gradients.items()
        ]
        gradients = _finite(torch.cat(parts))
        tensors = torch.tensor(
            [_features(gradient) for gradient in differences.gradients.values()], dtype=torch.float64
        )
    return Signature(
        logps=_beyond_only(differences.logps, differences.logps_beyond),
        logps_beyond=_joined(differences.logps_beyond).bool(),
        ref_logps=_beyond_only(differences.ref_logps, differences.ref_logps_beyond),
        ref_logps_beyond=_joined(differences.ref_logps_beyond).bool(),
        rewards=_beyond_only([differences.rewards], [differences.rewards_beyond]),
        loss=_finite(zero + differences.loss) * float("loss" in differences.beyond),
        gradients=gradients,
        tensors=tensors,
        logps_apart=actual.logps_apart,
    )


def distance(one: Signature, other: Signature) -> float:
    """Distance between two signatures of the same case.

    Args:
        one: A signature.
        other: Another.

    Returns:
        In [0, 1]: 0 where they are the same, 1 where they have nothing in common.
    """
    parts = [
        _logps(one, other, "logps"),
        _logps(one, other, "ref_logps"),
        _values(one.rewards, other.rewards),
        _values(one.loss, other.loss),
        _mean_known(_values(one.gradients, other.gradients), _shapes(one.tensors, other.tensors)),
    ]
    known = [part for part in parts if part is not None]
    return sum(known) / len(known) if known else 0.0


def _beyond_only(differences: Sequence[Tensor], beyond: Sequence[Tensor]) -> Tensor:
    return _finite(_joined(differences)) * _joined(beyond)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One vector; an empty one of what the objective has not."""
    return torch.cat(list(parts)) if parts else torch.zeros(0, dtype=torch.float64)


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _features(gradient: GradientDifference) -> tuple[float, float]:
    """Norm ratio squeezed into [0, 1], a half where it is right, and cosine; zeros for what is not a number."""
    if not gradient.beyond:
        return 0.5, 1.0
    ratio = gradient.norm_ratio if math.isfinite(gradient.norm_ratio) else 0.0
    return ratio / (1 + ratio), gradient.cosine if math.isfinite(gradient.cosine) else 0.0


def _logps(one: Signature, other: Signature, name: Literal["logps", "ref_logps"]) -> float | None:
    beyond = [getattr(side, f"{name}_beyond") for side in (one, other)]
    if any(side.logps_apart and not bool(differs.any()) for side, differs in zip((one, other), beyond, strict=True)):
        return None
    return _mean_known(_values(getattr(one, name), getattr(other, name)), _sets(*beyond))


def _values(one: Tensor, other: Tensor) -> float | None:
    if one.shape != other.shape:
        return None
    sizes = float(one.norm() + other.norm())
    return float((one - other).norm()) / sizes if sizes > 0 else None


def _sets(one: Tensor, other: Tensor) -> float | None:
    union = int((one | other).sum())
    return 1 - int((one & other).sum()) / union if union else None


def _shapes(one: Tensor, other: Tensor) -> float | None:
    if (
        one.shape != other.shape
        or one.shape[0] == 0
        or bool((one == _RIGHT_TENSOR).all() and (other == _RIGHT_TENSOR).all())
    ):
        return None
    differing = (one != _RIGHT_TENSOR).any(1) | (other != _RIGHT_TENSOR).any(1)
    difference = (one - other).abs()[differing]
    # Ratios lie in [0, 1], half of it on either side of the right one; cosines in [-1, 1].
    return float((difference[:, 0].clamp(max=0.5) + difference[:, 1] / 4).mean())


def _mean_known(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) / len(known) if known else None


def nearest(signature: Signature, among: Mapping[str, Signature]) -> list[tuple[str, float]]:
    """Names of signatures with their distances, nearest first.

    Two that tell nothing are not alike: label smoothing that is ignored where there is none is nobody's neighbour.

    Args:
        signature: The one that was seen.
        among: Known ones by name.

    Returns:
        Nothing where the signature tells nothing; those that tell nothing are left out.
    """
    if signature.tells_nothing:
        return []
    distances = ((name, distance(signature, known)) for name, known in among.items() if not known.tells_nothing)
    return sorted(distances, key=lambda item: item[1])

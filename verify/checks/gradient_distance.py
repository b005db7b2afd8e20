"""Loss and gradients of a subject held against those of the unpacked path."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from verify.checks.accumulation import Accumulated
from verify.checks.check import Measured
from verify.checks.gradient_yardsticks import GradientYardstick


class Distance(NamedTuple):
    """How far one value is from what it must be.

    Args:
        what: What it is.
        difference: In nats of a loss, as relative L2 of a gradient; NaN where a value is none.
        budget: The largest difference that rounding explains.
    """

    what: str
    difference: float
    budget: float

    @property
    def ratio(self) -> float:
        """Difference / budget; infinite where the difference is no number, or where nothing may differ."""
        if self.difference == 0:
            return 0.0
        return self.difference / self.budget if self.budget and not math.isnan(self.difference) else math.inf


def distances(actual: Accumulated, yardstick: GradientYardstick, where: str) -> list[Distance]:
    """Loss and every LoRA tensor.

    Args:
        actual: The subject's.
        yardstick: The unpacked path's, with budgets.
        where: Put in front of each.

    Returns:
        One distance for the loss and each tensor that has a gradient on either side; elsewhere it counts as zero.
    """
    return [
        Distance(f"{where}the loss", abs(actual.loss - yardstick.loss), yardstick.loss_budget),
        *(
            Distance(f"{where}the gradient of {name}", difference, yardstick.gradient_budgets.get(name, 0.0))
            for name, difference in relative_l2(actual.gradients, yardstick.gradients)
        ),
    ]


def relative_l2(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Iterator[tuple[str, float]]:
    """Name and relative distance of every tensor of either side; one that is missing counts as zero.

    Args:
        actual: float64 gradients.
        expected: float64 gradients; the distance is relative to their norm.

    Yields:
        Names in order, each with its distance; infinite where only zero is expected.
    """
    zero = torch.zeros((), dtype=torch.float64)
    for name in sorted(actual.keys() | expected.keys()):
        true = expected.get(name, zero)
        distance, norm = float((actual.get(name, zero) - true).norm()), float(true.norm())
        yield name, distance / norm if norm else math.inf if distance else 0.0


def held_against(found: list[Distance]) -> Measured:
    """What a check measured, from all of its distances.

    Args:
        found: One at least.

    Returns:
        The number of values, of those beyond their budget, and the worst.
    """
    worst = max(found, key=lambda distance: distance.ratio)
    differing = sum(not distance.difference <= distance.budget for distance in found)  # NaN never equals
    return Measured(
        num_compared=len(found),
        num_differing=differing,
        worst=f"{worst.what} is {worst.difference:.3g} off; rounding explains {worst.budget:.3g}" if differing else "",
        ratio=worst.ratio,
    )

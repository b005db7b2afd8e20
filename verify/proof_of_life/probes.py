"""The faults of the catalogue that are planted in every run of the gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verify.faults.catalogue import mutation_named
from verify.faults.fault import Mutation


@dataclass(frozen=True, slots=True)
class Probe:
    """A fault to plant.

    Args:
        fault: Its name in the catalogue.
        seen_in: The least that must be computed to see it: the forward passes, or the gradients as well.
        fine: So small that bfloat16 or the rounding of a large model may hide it: there a survivor is a blind spot, and
            not a sign that the run is blind.
    """

    fault: str
    seen_in: Literal["forward", "gradients"] = "forward"
    fine: bool = False

    @property
    def mutation(self) -> Mutation:
        """The entry of the catalogue."""
        return mutation_named(self.fault)


PROBES: tuple[Probe, ...] = (
    Probe("branches-not-isolated"),
    Probe("prompt-cache-detached", seen_in="gradients"),
    Probe("reference-with-adapters-on"),
    Probe("falls-back-to-unpacked"),
    Probe("trees-not-isolated"),
    Probe("neighbour-predicts"),
    Probe("positions-run-on"),
    Probe("positions-in-bfloat16"),
    Probe("prompt-counted"),
    Probe("mean-instead-of-sum", seen_in="gradients"),
    Probe("preference-reversed", seen_in="gradients"),
    Probe("sum-over-groups", seen_in="gradients"),
    Probe("first-layer-without-gradient", seen_in="gradients"),
    Probe("third-tree-sees-second"),
    Probe("logits-in-bfloat16-forward", fine=True),
    Probe("one-gradient-off-by-a-thousandth", seen_in="gradients", fine=True),
)
"""Most telling first: where a run affords few, those at the front are planted.

Every stage of the packed computation has one, and every family of checks has one that it is needed for.
"""

"""The peak of a step: what is held, what is gathered and what lives, window after window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.forecast.depth import Repeated
from verify.forecast.state import InFlight
from verify.forecast.step_trace import Phase, Window


@dataclass(frozen=True, slots=True)
class PeakBytes:
    """Bytes of a rank at the moment when most of them live.

    Args:
        parameters: Its share of the parameters, those of a frozen copy included.
        optimizer_state: Its share.
        gradients: Gradients of parameters that are there already: its share, or all of them while they are whole.
        gathered: Parameters of others that are gathered, and buffers of the sums of gradients.
        activations: All else: what is kept for the backward pass, and what an operator is just computing.
        phase: Where in the step.
        layer: The decoder layer; None between layers.
    """

    parameters: int
    optimizer_state: int
    gradients: int
    gathered: int
    activations: int
    phase: Phase
    layer: int | None

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.optimizer_state + self.gradients + self.gathered + self.activations


def peak_of(
    step: Sequence[Repeated], *, parameters: int, optimizer_state: int, in_flight: InFlight, num_ranks: int
) -> PeakBytes:
    """Walk through a step.

    Args:
        step: Its windows, the optimizer's included.
        parameters: Bytes of parameters that a rank holds.
        optimizer_state: Bytes of optimizer state that a rank holds.
        in_flight: What sharding gathers.
        num_ranks: Among how many ranks gradients are shared, once a layer is done.

    Returns:
        The peak; the first, if there are several.
    """
    windows = [each.window for each in step]
    live = shared = whole = 0
    best: PeakBytes | None = None
    for index, (each, window) in enumerate(zip(step, windows, strict=True)):
        gathered = in_flight.during(windows, index)
        # Within a run of like windows bytes grow or fall evenly: its first or its last is the largest.
        for repeat, layer in {0: each.first_layer, each.times - 1: each.last_layer}.items():
            found = PeakBytes(
                parameters=parameters,
                optimizer_state=optimizer_state,
                gradients=_held(shared, whole, window, repeat, num_ranks),
                gathered=gathered,
                activations=live + repeat * window.growth + window.excess,
                phase=window.phase,
                layer=layer,
            )
            if best is None or found.total > best.total:
                best = found
        live += each.times * window.growth
        if window.layer is None:
            whole += window.gradient_growth
        else:
            shared += each.times * window.gradient_growth
    if best is None:
        raise ValueError("a step without windows has no peak")
    return best


def _held(shared: int, whole: int, window: Window, repeat: int, num_ranks: int) -> int:
    """Bytes of gradients: those of layers are shared as soon as a layer is done, the root's before the optimizer."""
    if window.phase == "optimizer":
        return (shared + whole) // num_ranks
    return (shared + (repeat * window.gradient_growth if window.layer is not None else 0)) // num_ranks + whole

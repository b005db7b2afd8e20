"""The least time that a step can take on a device: every operator at its roof, every gather behind what it overlaps.

An operator takes the longer of ``FLOPs / peak rate`` and ``bytes / memory rate``, each tensor read or written once, as
eager kernels do that share nothing through a cache. Launches, kernels below their roof and the optimizer's scalar work
take none; so it is a lower bound, and what it says well is how paths compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.forecast.depth import Repeated
from verify.forecast.devices import DeviceProfile
from verify.forecast.state import ModelState
from verify.forecast.step_trace import PHASES, Phase, Window

ASSUMPTIONS = (
    "every operator at its roof: the longer of FLOPs / peak rate and bytes / memory rate",
    "eager kernels: an operator reads and writes each tensor once, nothing is fused or kept in a cache",
    "causal and block-sparse kernels skip what they may; a mask of booleans skips nothing",
    "gathers and sums over ranks overlap with the layer that runs meanwhile; what is longer counts",
    "no time for launches, host work, data loading, stragglers",
)


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Time of a step by phase.

    Args:
        by_phase: Seconds of each phase that the step has.
        memory_bound: Seconds of them in operators that wait for memory rather than for arithmetic.
        exposed: Seconds of them that wait for other ranks.
    """

    by_phase: dict[Phase, float]
    memory_bound: float
    exposed: float

    @property
    def total(self) -> float:
        """Of all phases."""
        return sum(self.by_phase.values())


def step_seconds(
    step: Sequence[Repeated], device: DeviceProfile, dtype: str, *, gathered: Sequence[ModelState], num_ranks: int
) -> StepSeconds:
    """Time of a step.

    Args:
        step: Its windows.
        device: The device.
        dtype: Of matrix products.
        gathered: The state of the policy, and that of a frozen copy where there is one.
        num_ranks: Number of ranks.

    Returns:
        Seconds.
    """
    by_phase = dict.fromkeys(PHASES, 0.0)
    memory_bound = exposed = 0.0
    flops_per_s = device.flops_per_s[dtype]
    for index, each in enumerate(step):
        computing = waiting = 0.0
        for operation, number in each.window.work.operations.items():
            arithmetic, memory = operation.flops / flops_per_s, operation.num_bytes / device.bytes_per_s
            computing += number * max(arithmetic, memory)
            waiting += number * memory if memory > arithmetic else 0.0
        link = _link_seconds(each.window, device, gathered, num_ranks, begins=index == 0)
        by_phase[each.window.phase] += each.times * max(computing, link)
        memory_bound += each.times * waiting
        exposed += each.times * max(0.0, link - computing)
    return StepSeconds({phase: s for phase, s in by_phase.items() if s}, memory_bound, exposed)


def _link_seconds(
    window: Window, device: DeviceProfile, gathered: Sequence[ModelState], num_ranks: int, *, begins: bool
) -> float:
    """Seconds in which a layer is gathered, and its gradients are summed over ranks and shared out; first the root."""
    if num_ranks == 1 or device.link_bytes_per_s is None or (window.layer is None and not begins):
        return 0.0
    state = gathered[-1] if window.phase == "reference" else gathered[0]
    num_bytes = state.root.num_bytes() if begins else state.layer.num_bytes()
    if window.phase == "backward":
        num_bytes += state.layer.num_bytes(trained_only=True)
    return num_bytes * (num_ranks - 1) / num_ranks / device.link_bytes_per_s

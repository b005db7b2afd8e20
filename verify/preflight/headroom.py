"""Whether the planned batch and the model fit into memory, said before anything is loaded, and by how much not."""

from __future__ import annotations

from reports.words import size
from verify.forecast.peak import PeakBytes
from verify.preflight.finding import Finding, abstains, go, no_go
from verify.preflight.machine import Machine
from verify.preflight.profiles import Profile
from verify.preflight.step_memory import PlannedBatch, StepMemory

PROBE = "memory headroom"
_HINT = "more ranks, a smaller batch (--pairs), gradient checkpointing, or bfloat16 weights"


def check_headroom(needed: StepMemory, batch: PlannedBatch, machine: Machine, profile: Profile) -> list[Finding]:
    """Hold what a step needs against what a rank has.

    Where memory is unified, or where the device is the CPU, the machine's MemAvailable is shared by its ranks; else a
    rank has what its device has free. A profile's cap bounds either.

    Args:
        needed: What a step takes.
        batch: The batch, for the words.
        machine: The machine of this rank.
        profile: Its profile.

    Returns:
        A finding of the step with each backend, and one of loading.
    """
    available = available_bytes(machine, profile)
    steps = [_step(backend, peak, batch, available) for backend, peak in needed.peaks.items()]
    return [*steps, _loading(needed.loading, machine)]


def available_bytes(machine: Machine, profile: Profile) -> int | None:
    """Bytes that one rank can have on its device, None where nothing says so."""
    device, host = machine.device, machine.memory.available_bytes
    shared = None if host is None else host // machine.processes
    if not device.is_cuda:
        return shared
    free = device.free_bytes if not profile.unified_memory or shared is None else shared
    return free if profile.cap_bytes is None or free is None else min(free, profile.cap_bytes)


def _step(backend: str, peak: PeakBytes, batch: PlannedBatch, available: int | None) -> Finding:
    part = f"step {backend}"
    said = (
        f"a step of {batch.tokens:,} tokens ({batch.pairs} x ({batch.prompt} + 2 x {batch.response})) "
        f"needs {size(peak.total)} a rank: parameters {size(peak.parameters)}, gathered {size(peak.gathered)}, "
        f"activations {size(peak.activations)}, optimizer and gradients {size(peak.optimizer_state + peak.gradients)}"
    )
    if available is None:
        return abstains(PROBE, f"{said}; neither the device nor /proc/meminfo says what there is", part=part)
    measures = {"needed_bytes": float(peak.total), "available_bytes": float(available)}
    if peak.total > available:
        short = f"{said}; it has {size(available)}, {size(peak.total - available)} too few"
        return no_go(PROBE, short, _HINT, part=part, measures=measures)
    left = f"{said}; it has {size(available)}, {size(available - peak.total)} of it left"
    return go(PROBE, left, part=part, measures=measures)


def _loading(of_a_rank: int, machine: Machine) -> Finding:
    """The model is whole in the memory of the host, on each rank, until it is sharded."""
    host, all_ranks = machine.memory.available_bytes, of_a_rank * machine.processes
    said = f"{machine.processes} x {size(of_a_rank)} of host memory while the model is built and sharded"
    if host is None:
        return abstains(PROBE, f"{said}; /proc/meminfo does not say what there is", part="loading")
    if all_ranks > host:
        hint = "fewer ranks on this machine, fewer layers (--layers), or a smaller dtype"
        return no_go(PROBE, f"{said}; it has {size(host)}, {size(all_ranks - host)} too few", hint, part="loading")
    return go(PROBE, f"{said}, of {size(host)}", part="loading")

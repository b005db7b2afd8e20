"""Whether the planned batch and the model fit into memory, said before anything is loaded, and by how much not."""

from __future__ import annotations

from reports.words import size
from verify.preflight.batch_memory import NeededBytes, PlannedBatch
from verify.preflight.finding import Finding, abstains, go, no_go
from verify.preflight.machine import Machine
from verify.preflight.profiles import Profile

PROBE = "memory headroom"


def check_headroom(needed: NeededBytes, batch: PlannedBatch, machine: Machine, profile: Profile) -> list[Finding]:
    """Hold what a step needs against what a rank has.

    Where memory is unified, or where the device is the CPU, the machine's MemAvailable is shared by its ranks; else a
    rank has what its device has free. A profile's cap bounds either.

    Args:
        needed: What a step takes.
        batch: The batch, for the words.
        machine: The machine of this rank.
        profile: Its profile.

    Returns:
        A finding of the step, and one of loading.
    """
    measures = {
        "needed_bytes": float(needed.peak),
        "weights_bytes": float(needed.weights),
        "in_flight_bytes": float(needed.in_flight),
        "activations_bytes": float(needed.activations),
        "logits_bytes": float(needed.logits),
        "loading_bytes": float(needed.loading),
    }
    said = (
        f"a step of {batch.tokens:,} tokens ({batch.groups} x {batch.prompt_tokens} + 2 x {batch.response_tokens}) "
        f"needs about {size(needed.peak)} a rank: share of weights and optimizer {size(needed.weights)}, "
        f"layers in flight {size(needed.in_flight)}, activations {size(needed.activations)}, "
        f"logits {size(needed.logits)}"
    )
    available = available_bytes(machine, profile)
    if available is None:
        reason = f"{said}; neither the device nor /proc/meminfo says what there is"
        return [abstains(PROBE, reason, part="step"), _loading(needed, machine)]
    measures["available_bytes"] = float(available)
    if needed.peak > available:
        hint = "more ranks, a smaller batch (--groups-per-rank), gradient checkpointing, or bfloat16 weights"
        short = f"{said}; it has {size(available)}, {size(needed.peak - available)} too few"
        return [no_go(PROBE, short, hint, part="step", measures=measures), _loading(needed, machine)]
    left = f"{said}; it has {size(available)}, {size(available - needed.peak)} of it left"
    hint = "an estimate from shapes; packparity forecast counts exactly"
    return [go(PROBE, left, part="step", hint=hint, measures=measures), _loading(needed, machine)]


def available_bytes(machine: Machine, profile: Profile) -> int | None:
    """Bytes that one rank can have on its device, None where nothing says so."""
    device, host = machine.device, machine.memory.available_bytes
    shared = None if host is None else host // machine.processes
    if not device.is_cuda:
        return shared
    free = device.free_bytes if not profile.unified_memory or shared is None else shared
    return free if profile.cap_bytes is None or free is None else min(free, profile.cap_bytes)


def _loading(needed: NeededBytes, machine: Machine) -> Finding:
    """The model is whole in the memory of the host, on each rank, until it is sharded."""
    host, all_ranks = machine.memory.available_bytes, needed.loading * machine.processes
    said = f"{machine.processes} x {size(needed.loading)} of host memory while the model is built and sharded"
    if host is None:
        return abstains(PROBE, f"{said}; /proc/meminfo does not say what there is", part="loading")
    if all_ranks > host:
        hint = "fewer ranks on this machine, fewer layers (--layers), or a smaller dtype"
        return no_go(PROBE, f"{said}; it has {size(host)}, {size(all_ranks - host)} too few", hint, part="loading")
    return go(PROBE, f"{said}, of {size(host)}", part="loading")

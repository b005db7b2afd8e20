"""Profiles of machines: what is known to go wrong there, checked before anything runs, each with a hint.

``gb10`` (NVIDIA GB10, DGX Spark): memory is shared by CPU and GPU, and running out of it freezes the machine; torch's
free memory leaves reclaimable page cache out; Triton's own ptxas does not know sm_121a; a block of threads has 101,376
bytes of shared memory, which flex attention's backward pass exceeds above a head_dim of 128; the network has two
adapters (published, or measured by others; nothing of it was measured by this project).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from reports.words import size
from verify.preflight.finding import Finding, abstains, go, no_go
from verify.preflight.machine import Machine, ptxas_version

PROBE = "profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a profile has to know of the run.

    Args:
        head_dim: Of the model's attention.
        flex: Whether FlexAttention is among the backends.
        num_hosts: Machines of the run.
    """

    head_dim: int
    flex: bool
    num_hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a kind of machine is like.

    Args:
        name: Its name on the command line.
        capability: Compute capability that its device must have; None for any.
        cap_bytes: Most bytes that torch may take of the device; None for all.
        unified_memory: CPU and GPU share the memory.
        num_adapters: Network adapters that several machines are to use; 0 for any number.
        least_ptxas: Major release of ptxas that Triton needs to be told of; 0 where it brings its own.
        most_head_dim: Largest head_dim for which flex attention has a backward pass; None for no limit.
    """

    name: str
    capability: tuple[int, int] | None = None
    cap_bytes: int | None = None
    unified_memory: bool = False
    num_adapters: int = 0
    least_ptxas: int = 0
    most_head_dim: int | None = None

    def memory_fraction(self, total_bytes: int) -> float:
        """The share of the device's memory that torch may take, as ``set_per_process_memory_fraction`` takes it."""
        return 1.0 if self.cap_bytes is None else min(1.0, self.cap_bytes / total_bytes)


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "none": Profile(name="none"),
        "gb10": Profile(
            name="gb10",
            capability=(12, 1),
            cap_bytes=100_000_000_000,
            unified_memory=True,
            num_adapters=2,
            least_ptxas=13,
            most_head_dim=128,
        ),
    }
)


def profile_named(name: str) -> Profile:
    """The profile of that name.

    Raises:
        ValueError: There is none; the message lists those that there are.
    """
    if name not in PROFILES:
        close = get_close_matches(name, PROFILES, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(f"unknown profile {name!r}{hint}: give one of {', '.join(PROFILES)}")
    return PROFILES[name]


def check_profile(
    profile: Profile, machine: Machine, planned: Planned, ptxas: Callable[[str], str] = ptxas_version
) -> list[Finding]:
    """Hold a machine against a profile.

    Args:
        profile: The profile.
        machine: The machine of this rank.
        planned: What is to run.
        ptxas: Tells the release of a ptxas.

    Returns:
        A finding for each thing that the profile has; one that abstains where it has none.
    """
    if profile == PROFILES["none"]:
        return [abstains(PROBE, "none was named: settings of the machine were not looked at", hint="--profile gb10")]
    return [
        finding
        for findings in (
            _device(profile, machine),
            _memory(profile, machine),
            _network(profile, machine, planned),
            _ptxas(profile, machine, planned, ptxas),
            _head_dim(profile, planned),
        )
        for finding in findings
    ]


def _device(profile: Profile, machine: Machine) -> Iterator[Finding]:
    if profile.capability is None:
        return
    found, wanted = machine.device.capability, profile.capability
    said = f"{machine.device.name}, compute capability {found[0]}.{found[1]}"
    if found == wanted:
        yield go(PROBE, said, part="device")
    else:
        hint = f"give --device cuda and --profile {profile.name} on machines of {wanted[0]}.{wanted[1]} only"
        yield no_go(PROBE, f"{said}, where {profile.name} has {wanted[0]}.{wanted[1]}", hint, part="device")


def _memory(profile: Profile, machine: Machine) -> Iterator[Finding]:
    total, memory, part = machine.device.total_bytes, machine.memory, "memory-cap"
    if profile.cap_bytes is None:
        return
    if total is None or memory.available_bytes is None:
        yield abstains(PROBE, "neither a device nor /proc/meminfo says how much memory there is", part=part)
        return
    fraction = profile.memory_fraction(total)
    readings = {
        "cap_bytes": float(profile.cap_bytes),
        "memory_fraction": fraction,
        "device_total_bytes": float(total),
        "device_free_bytes": float(machine.device.free_bytes or 0),
        "mem_available_bytes": float(memory.available_bytes),
        "swap_free_bytes": float(memory.swap_free_bytes or 0),
    }
    said = (
        f"cap of {size(profile.cap_bytes)} (fraction {fraction:.3f}); MemAvailable {size(memory.available_bytes)}, "
        f"SwapFree {size(memory.swap_free_bytes or 0)}, torch says {size(machine.device.free_bytes or 0)} free, which "
        "leaves reclaimable page cache out"
    )
    if memory.available_bytes < profile.cap_bytes:
        hint = "end what else runs there, or lower the cap: running out of unified memory freezes the machine"
        yield no_go(PROBE, f"less memory is available than the {said}", hint, part=part, measures=readings)
    else:
        hint = f"training needs torch.cuda.set_per_process_memory_fraction({fraction:.3f}) too; it bounds torch alone"
        yield go(PROBE, f"{said}; applied here", part=part, hint=hint, measures=readings)


def _network(profile: Profile, machine: Machine, planned: Planned) -> Iterator[Finding]:
    part, wanted = "NCCL_IB_HCA", profile.num_adapters
    if not wanted:
        return
    if planned.num_hosts < 2:
        yield abstains(PROBE, "one machine: no network between ranks", part=part)
        return
    value = machine.environment.get("NCCL_IB_HCA", "")
    there = f"; this machine has {', '.join(machine.adapters)}" if machine.adapters else ""
    hint = f"NCCL_IB_HCA=A,B with the {wanted} adapters that carry the link (ibdev2netdev lists them){there}"
    if not value:
        yield no_go(PROBE, f"NCCL_IB_HCA is not set: NCCL may use one of {wanted} adapters", hint, part=part)
        return
    names = [each.partition(":")[0] for each in value.lstrip("=").split(",") if each]
    unknown = [name for name in names if machine.adapters and not _names_one(name, value, machine.adapters)]
    if value.startswith("^") or len(set(names)) < wanted:
        yield no_go(PROBE, f"NCCL_IB_HCA={value} does not name {wanted} adapters", hint, part=part)
    elif unknown:
        yield no_go(PROBE, f"NCCL_IB_HCA names {', '.join(unknown)}, which this machine does not have", hint, part=part)
    else:
        yield go(PROBE, f"NCCL_IB_HCA={value}", part=part)


def _names_one(name: str, value: str, adapters: tuple[str, ...]) -> bool:
    """Whether an adapter is meant: by its name after "=", else by how its name begins, as NCCL takes it."""
    return name in adapters or (not value.startswith("=") and any(each.startswith(name) for each in adapters))


def _ptxas(profile: Profile, machine: Machine, planned: Planned, release_of: Callable[[str], str]) -> Iterator[Finding]:
    part, least = "TRITON_PTXAS_PATH", profile.least_ptxas
    if not least:
        return
    if not planned.flex:
        yield abstains(PROBE, "flex is not among the backends: nothing is compiled by Triton", part=part)
        return
    path = machine.environment.get("TRITON_PTXAS_PATH", "")
    hint = f"TRITON_PTXAS_PATH=/usr/local/cuda-{least}.0/bin/ptxas: without it sm_121a is not defined"
    if not path:
        yield no_go(PROBE, f"TRITON_PTXAS_PATH is not set, and {profile.name} needs ptxas {least}", hint, part=part)
        return
    try:
        release = release_of(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "no answer"
        yield no_go(PROBE, f"TRITON_PTXAS_PATH={Path(path)}: cannot be run: {reason}", hint, part=part)
        return
    major = release.partition(".")[0]
    if major.isdigit() and int(major) >= least:
        yield go(PROBE, f"TRITON_PTXAS_PATH={path}, release {release}", part=part)
    else:
        yield no_go(PROBE, f"TRITON_PTXAS_PATH={path} is release {release or 'unknown'}", hint, part=part)


def _head_dim(profile: Profile, planned: Planned) -> Iterator[Finding]:
    part, most = "head-dim", profile.most_head_dim
    if most is None:
        return
    if not planned.flex:
        yield abstains(PROBE, "flex is not among the backends", part=part)
    elif planned.head_dim > most:
        hint = "give --backend split or dense-sdpa: flex has no backward pass for it here"
        yield no_go(PROBE, f"head_dim {planned.head_dim}: flex attention's backward needs {most}", hint, part=part)
    else:
        yield go(PROBE, f"head_dim {planned.head_dim} of at most {most} for flex attention's backward", part=part)

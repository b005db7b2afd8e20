"""The probes in their order: what costs nothing first, and nothing is loaded where it would not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from verify.groups import PreferenceGroup
from verify.models.dtypes import DTYPES
from verify.preflight import collectives, readable
from verify.preflight.agreement import agreement
from verify.preflight.attention import Target, probe_attention
from verify.preflight.finding import Finding, abstains, go
from verify.preflight.headroom import check_headroom
from verify.preflight.look_around import Gathered
from verify.preflight.machine import synchronise
from verify.preflight.meeting import Meeting
from verify.preflight.plan import PreflightPlan
from verify.preflight.profiles import Planned, check_profile
from verify.preflight.step_memory import StepMemory, step_memory
from verify.tolerance import load_policy

BANDWIDTH_SIZES = {"cpu": (2**16, 2**20, 2**22), "cuda": (2**20, 2**24, 2**28)}
"""Bytes of the whole result, by kind of device."""


def look_at_devices(plan: PreflightPlan, meeting: Meeting, gathered: Gathered) -> float:
    """Devices and their drivers, the profile, and collectives.

    Returns:
        Seconds in which a byte is gathered from the other ranks.
    """
    device = meeting.place.device

    def works() -> Iterable[Finding]:
        ones = torch.ones(64, 64, device=device, dtype=DTYPES[plan.computes])
        total = float((ones @ ones).sum())
        synchronise(device)
        if total != 64.0**3:
            raise ValueError(f"a product of ones on {device} sums to {total}")
        yield go("devices", gathered.machine.device.describe())

    meeting.alone("devices", works)
    facts = asdict(gathered.machine.device) | {"free_bytes": None}
    same = agreement(
        "devices", meeting.gathered({name: str(value) for name, value in facts.items()}), hint="use equal machines"
    )
    meeting.together([Finding(probe="devices", part="alike", outcome=same.outcome, seen=same.seen, hint=same.hint)])
    planned = Planned(
        head_dim=plan.heads.head_dim,
        flex="flex" in plan.backends,
        num_hosts=len({rank.host for rank in gathered.ranks}),
    )
    meeting.alone("profile", lambda: check_profile(plan.profile, gathered.machine, planned))
    meeting.enter("collectives")
    found = collectives.check_results(meeting.place.rank, meeting.place.world_size, device)
    meeting.alone("collectives", lambda: [found])
    meeting.enter("collectives")
    sizes = BANDWIDTH_SIZES[torch.device(device).type]
    times = meeting.gathered(collectives.measure_times(device, sizes))
    meeting.together(collectives.bandwidth(times))
    return collectives.gather_seconds(times)


def look_at_files(plan: PreflightPlan, meeting: Meeting) -> Sequence[PreferenceGroup]:
    """Checkpoint and data: whether every rank can read them, and reads the same.

    Returns:
        Groups of the data, the same on all ranks; none without.
    """
    options = plan.options
    folder = Path(options.model) if plan.model.is_checkpoint else None

    def data() -> readable.Read:
        return readable.read_data(
            options.data,
            options.tokenizer,
            seed=options.seed,
            max_tokens=options.max_tokens,
            vocab_size=plan.vocab_size,
        )

    _read_alike(readable.CHECKPOINT, meeting, lambda: readable.read_checkpoint(folder))
    # A file is read as a whole once on each machine; the groups that rank 0 drew are those of the run.
    read = data if meeting.place.local_rank == 0 else lambda: readable.touch_data(options.data)
    return meeting.gathered(_read_alike(readable.DATA, meeting, read).groups)[0]


def _read_alike(probe: str, meeting: Meeting, read: Callable[[], readable.Read]) -> readable.Read:
    done = [readable.Read(finding=abstains(probe, "it could not be read"))]

    def reading() -> Iterable[Finding]:
        done[0] = read()
        yield done[0].finding

    meeting.alone(probe, reading)
    contents = meeting.gathered(done[0].contents)
    contents = [each for each in contents if each]
    if len(contents) > 1:
        same = agreement(probe, contents, hint="copy the same files to every machine")
        meeting.together([Finding(probe=probe, part="alike", outcome=same.outcome, seen=same.seen, hint=same.hint)])
    return done[0]


def look_at_memory(plan: PreflightPlan, meeting: Meeting, gathered: Gathered) -> None:
    """Whether the planned batch and the model fit: rank 0 follows a step on shapes, every rank has its own memory."""
    followed: list[StepMemory] = []

    def follow() -> Iterable[Finding]:
        if meeting.place.rank == 0:
            followed.append(
                step_memory(
                    plan.config,
                    plan.model.lora,
                    plan.batch,
                    plan.backends,
                    dtype=plan.weights,
                    device_type=torch.device(meeting.place.device).type,
                    world_size=meeting.place.world_size,
                )
            )
        return ()

    meeting.alone("memory headroom", follow)
    of_step = meeting.gathered(followed)[0]
    meeting.alone(
        "memory headroom",
        lambda: [
            finding
            for needed in of_step
            for finding in check_headroom(needed, plan.batch, gathered.machine, plan.profile)
        ],
    )


def look_at_kernels(plan: PreflightPlan, meeting: Meeting) -> tuple[str, ...]:
    """Which attention backends run here.

    Returns:
        Those that were proven on all ranks.
    """
    target = Target(
        sizes=plan.heads,
        dtype=DTYPES[plan.computes],
        device=meeting.place.device,
        policy=load_policy(None),
        seed=plan.options.seed,
    )
    for backend in plan.backends:
        meeting.alone("attention", lambda backend=backend: [probe_attention(backend, target)])  # type: ignore[misc]
    return tuple(backend for backend in plan.backends if meeting.everywhere("attention", backend))

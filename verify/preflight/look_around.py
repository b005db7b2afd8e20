"""Who is there, and whether all run the same: before anything is loaded that takes long."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from reports.preflight_record import PreflightRank
from verify.preflight.agreement import agreement
from verify.preflight.machine import Machine, read_machine
from verify.preflight.meeting import Meeting
from verify.preflight.options import PreflightOptions

_HINT_VERSIONS = "install the same environment on every machine (pip install -c constraints.txt)"
_HINT_ARGUMENTS = "start every rank with the same command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What probes that come first leave for the record and for those that come later.

    Args:
        machine: Of this rank.
        ranks: Who runs where.
    """

    machine: Machine
    ranks: tuple[PreflightRank, ...]


def look_around(options: PreflightOptions, meeting: Meeting) -> Gathered:
    """Arguments, versions, devices: whether all ranks run the same.

    Args:
        options: The options.
        meeting: Takes the findings.

    Returns:
        What was found about machines.
    """
    meeting.enter("arguments")
    values = {**options.as_values(), "world_size": str(meeting.place.world_size)}
    meeting.together([agreement("arguments", meeting.gathered(values), hint=_HINT_ARGUMENTS)])
    meeting.enter("versions")
    hosts = meeting.gathered(socket.gethostname())
    machine = read_machine(meeting.place.device, hosts.count(socket.gethostname()))
    meeting.together(
        [
            agreement("versions", meeting.gathered(machine.versions), hint=_HINT_VERSIONS),
            agreement(
                "settings", meeting.gathered(machine.settings), hint="export the same variables on every machine"
            ),
        ]
    )
    ranks = meeting.gathered(
        PreflightRank(
            rank=meeting.place.rank,
            local_rank=meeting.place.local_rank,
            host=machine.host,
            device=machine.device.describe(),
            driver=machine.device.driver,
        )
    )
    return Gathered(machine=machine, ranks=tuple(ranks))

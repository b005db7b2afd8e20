"""Parity of the sharded model with the kernels of this machine."""

from __future__ import annotations

from collections.abc import Sequence

from verify.data.load import LoadedPairs
from verify.preflight.finding import abstains
from verify.preflight.meeting import Meeting
from verify.preflight.plan import PreflightPlan
from verify.preflight.run import Gathered


def look_at_parity(
    plan: PreflightPlan, meeting: Meeting, gathered: Gathered, backends: Sequence[str], pairs: LoadedPairs | None
) -> list[str]:
    """Judge."""
    meeting.together([abstains("parity", "not there yet"), abstains("determinism", "not there yet")])
    return []

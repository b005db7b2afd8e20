"""What a record of a preflight must agree with itself about beyond its decision: what is required, and its figures.

A record that was edited by hand is refused where one part of it gives another away; it is no proof against forgery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.preflight_record import PreflightFinding, PreflightRecord

ALWAYS_REQUIRED = (
    "arguments", "versions", "devices", "collectives results", "memory headroom", "attention", "parity", "determinism",
)  # fmt: skip
"""Without these there is no GO. Of attention and parity any one backend will do, unless backends were named."""
WOULD_NOTICE = "would notice"
"""The probe of planted faults; what it plants is required where rounding hides none of it."""
PLANTED = ("leak", "world-size")

_OVER_BUDGET = "_over_budget"


def inconsistencies(record: PreflightRecord) -> Iterator[str]:
    """Where parts of a record contradict each other.

    Args:
        record: Whose parts are each sound.

    Yields:
        One sentence for each contradiction; none for a record as a run writes it.
    """
    yield from _left_out(record)
    seen = Counter((finding.name, finding.rank) for finding in record.findings)
    yield from (
        f"{name}: {times} findings of {'all ranks' if rank is None else f'rank {rank}'}"
        for (name, rank), times in seen.items()
        if times > 1
    )
    for finding in record.findings:
        yield from _figures(finding)


def _left_out(record: PreflightRecord) -> Iterator[str]:
    """What the options make necessary and a GO does not require; a NO-GO may end before they were looked at."""
    if record.decision != "GO":
        return
    request = record.request
    wanted = [
        *ALWAYS_REQUIRED,
        *(f"{WOULD_NOTICE} {part}" for part in PLANTED if request.get("dtype") in ("float32", "float64")),
        *(name for name, none in (("data", "None"), ("profile", "none")) if request.get(name, none) != none),
    ]
    yield from (
        f"{name} is not required, without which there is no GO" for name in wanted if name not in record.required
    )


def _figures(finding: PreflightFinding) -> Iterator[str]:
    """Figures that make another outcome of what is GO."""
    if finding.outcome != "GO":
        return
    caught = finding.probe == WOULD_NOTICE
    for name, value in finding.measures.items():
        if caught and name == "measured_over_budget" and not value > 1:
            yield f"{finding.name}: GO, but what was planted came to {value} of its budget"
        elif not caught and name.endswith(_OVER_BUDGET) and not value <= 1:
            yield f"{finding.name}: GO with {name} {value}"
    needed, available = finding.measures.get("needed_bytes"), finding.measures.get("available_bytes")
    if needed is not None and available is not None and not needed <= available:
        yield f"{finding.name}: GO, but {needed:.0f} bytes are needed and {available:.0f} are there"

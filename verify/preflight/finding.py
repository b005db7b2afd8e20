"""What a probe says: GO, NO-GO or that it abstains, what was seen, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from reports.preflight_record import Outcome, PreflightFinding


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one probe found.

    Args:
        probe: Its name.
        outcome: "GO": proven here; "NO-GO": found wrong; "ABSTAINS": could not be looked at, which proves nothing;
            "MEASURED": a figure that is printed and not judged, which proves nothing either.
        seen: What was seen, in a sentence; why, where it abstains.
        hint: What to do; needed with NO-GO.
        part: What of the probe, e.g. a backend.
        measures: Raw values by name; names carry units.
    """

    probe: str
    outcome: Outcome
    seen: str
    hint: str = ""
    part: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)

    def at(self, rank: int | None) -> PreflightFinding:
        """As a record: of one rank, or of all together (None)."""
        return PreflightFinding(
            probe=self.probe,
            part=self.part,
            rank=rank,
            outcome=self.outcome,
            seen=self.seen,
            hint=self.hint,
            measures=dict(self.measures),
        )


_NOTHING: Mapping[str, float] = MappingProxyType({})


def go(probe: str, seen: str, *, part: str = "", hint: str = "", measures: Mapping[str, float] = _NOTHING) -> Finding:
    """Proven; a hint may still say what would be better."""
    return Finding(probe=probe, outcome="GO", seen=seen, hint=hint, part=part, measures=measures)


def no_go(probe: str, seen: str, hint: str, *, part: str = "", measures: Mapping[str, float] = _NOTHING) -> Finding:
    """Found wrong."""
    return Finding(probe=probe, outcome="NO-GO", seen=seen, hint=hint, part=part, measures=measures)


def measured(probe: str, seen: str, *, part: str, measures: Mapping[str, float]) -> Finding:
    """A figure that nothing judges."""
    return Finding(probe=probe, outcome="MEASURED", seen=seen, part=part, measures=measures)


def abstains(probe: str, reason: str, *, part: str = "", hint: str = "") -> Finding:
    """Not looked at, and why."""
    return Finding(probe=probe, outcome="ABSTAINS", seen=reason, hint=hint, part=part)

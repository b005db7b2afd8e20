"""A stage under suspicion, and how suspects are ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verify.faults.stages import STAGES, StageName

MEASURED, INFERRED, POSSIBLE = 0.1, 0.2, 0.4
"""Distance of a stage that was seen to be wrong, that follows, and that cannot be told apart from one that does."""
SAME_SIGNATURE = 0.02
"""Largest distance of two signatures that are the same but for rounding."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A stage, how near it is to being the culprit (0 nearest), and why, in one sentence."""

    stage: StageName
    distance: float
    because: str


def rank(from_evidence: Sequence[Suspect], nearest: Sequence[tuple[str, StageName, float]]) -> tuple[Suspect, ...]:
    """Stages by evidence and by the nearest faults of the catalogue, nearest first.

    A fault of the same signature has its own distance and comes before everything else. Any other fault comes after
    the evidence: half a unit, and half its distance. Distances are kept to two decimals, since what is nearer than
    that cannot be told apart; of the same distance, what evidence points to comes first, then what is computed first.

    Args:
        from_evidence: Suspects that the evidence points to.
        nearest: Faults: name, stage, distance.

    Returns:
        One suspect for each stage.
    """
    best: dict[StageName, Suspect] = {}
    for suspect in from_evidence:
        _keep_nearer(best, suspect)
    pointed_to = dict(best)
    for name, stage, distance in nearest:
        if distance <= SAME_SIGNATURE:
            because = f"the planted fault {name} has the same signature"
            measured = f"; {pointed_to[stage].because}" if stage in pointed_to else ""
            _keep_nearer(best, Suspect(stage, distance, because + measured))
        else:
            _keep_nearer(
                best, Suspect(stage, 0.5 + distance / 2, f"the planted fault {name} is at distance {distance:.2f}")
            )
    rounded = [replace(suspect, distance=round(suspect.distance, 2)) for suspect in best.values()]
    return tuple(sorted(rounded, key=lambda s: (s.distance, s.stage not in pointed_to, STAGES.index(s.stage))))


def _keep_nearer(best: dict[StageName, Suspect], suspect: Suspect) -> None:
    if suspect.stage not in best or suspect.distance < best[suspect.stage].distance:
        best[suspect.stage] = suspect

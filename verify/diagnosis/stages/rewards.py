"""What follows for a reward model, whose step has no log-probs: from which quantities differ."""

from __future__ import annotations

from collections.abc import Iterator

from verify.diagnosis.differences import Differences
from verify.diagnosis.stages.suspect import INFERRED, POSSIBLE, Suspect

_HEAD = "score.weight"


def reward_suspects(differences: Differences) -> Iterator[Suspect]:
    """Stages behind the first quantity that differs; wrong rewards are left to the nearest faults.

    Args:
        differences: From the unpacked path.

    Yields:
        Suspects.
    """
    if "rewards" in differences.beyond:
        return
    if "loss" in differences.beyond:
        yield Suspect("objective", INFERRED, "all rewards are right and the loss is wrong")
        yield Suspect("accumulation", POSSIBLE, "all rewards are right and the loss is wrong")
        return
    wrong = [name for name, gradient in differences.gradients.items() if gradient.beyond]
    if wrong and all(name.endswith(_HEAD) for name in wrong):
        yield Suspect("scores", INFERRED, "of all gradients only that of the head is wrong")
    elif not any(name.endswith(_HEAD) for name in wrong):
        yield Suspect("scores", POSSIBLE, "the gradient of the head is right and those of adapters are wrong")
        yield Suspect("gradients", POSSIBLE, "the gradient of the head is right and those of adapters are wrong")

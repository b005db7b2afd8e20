"""Suspects where rewards are exact and the loss is not."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.stages.suspect import INFERRED, MEASURED, POSSIBLE, Suspect
from verify.faults.stages import StageName

_TOLERANCE = 0.01


def loss_suspects(evidence: Evidence) -> Iterator[Suspect]:
    """The objective, or how groups are put together.

    Groups that merely weigh differently do so in the loss and in the gradient alike.
    """
    weights = evidence.weights
    if weights is None:
        yield Suspect("objective", POSSIBLE, "rewards are exact, the loss is not")
        yield Suspect("accumulation", POSSIBLE, "rewards are exact, the loss is not")
        return
    if not weights.by_response:
        stage: StageName = "supervision" if weights.explained else "gradients"
        yield Suspect(stage, INFERRED, "the loss was not made of the rewards: tokens of one response weigh differently")
        yield Suspect("objective", POSSIBLE, "rewards are exact, the loss is not")
        return
    ratios = torch.tensor(weights.response_ratios, dtype=torch.float64).view(-1, 2)
    balanced = bool(((ratios[:, 0] - ratios[:, 1]).abs() <= _TOLERANCE * ratios.abs().max()).all())
    reweighted = float((ratios.mean(1) * evidence.group_losses).mean())
    if balanced and abs(reweighted - float(evidence.actual.loss)) <= _TOLERANCE * abs(reweighted):
        shown = ", ".join(f"{float(ratio):.3g}" for ratio in ratios.mean(1)[:4])
        yield Suspect(
            "accumulation", MEASURED, f"groups weigh {shown} times what they should, in loss and gradient alike"
        )
    else:
        yield Suspect("objective", INFERRED, "rewards are exact; no weights of the groups explain loss and gradient")
        yield Suspect("accumulation", POSSIBLE, "rewards are exact, the loss is not")

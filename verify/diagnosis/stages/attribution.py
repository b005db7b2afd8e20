"""Which stages the evidence points to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from verify.diagnosis.stages.backward import backward_suspects
from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.stages.log_probs import log_prob_suspects
from verify.diagnosis.stages.losses import loss_suspects
from verify.diagnosis.stages.sft_losses import sft_loss_suspects
from verify.diagnosis.stages.sums import reward_suspects
from verify.diagnosis.stages.suspect import MEASURED, Suspect
from verify.objective import Sft

_EQUAL = 2e-3


def suspects_from_evidence(evidence: Evidence) -> tuple[Suspect, ...]:
    """Stages that the evidence points to.

    Args:
        evidence: What was measured.

    Returns:
        Suspects, nearest first; none where the evidence does not tell.
    """
    beyond = evidence.differences.beyond
    find: Callable[[Evidence], Iterator[Suspect]]
    if "per_token_logps" in beyond:
        find = log_prob_suspects
    elif "ref_per_token_logps" in beyond:
        find = reference_suspects
    elif beyond & {"rewards", "margins"}:
        find = reward_suspects
    elif "loss" in beyond:
        find = sft_loss_suspects if isinstance(evidence.objective, Sft) else loss_suspects
    elif "gradients" in beyond:
        find = backward_suspects
    else:
        return ()
    return tuple(sorted(find(evidence), key=lambda suspect: suspect.distance))


def reference_suspects(evidence: Evidence) -> Iterator[Suspect]:
    """The policy is exact, the frozen policy is not."""
    policy = torch.cat(list(evidence.expected.per_token_logps))
    reference = torch.cat(list(evidence.actual.ref_per_token_logps))
    right = "log-probs of the policy are exact, those of the frozen policy are not"
    if bool(torch.isfinite(reference).all()) and bool((policy - reference).abs().max() <= _EQUAL):
        right += ": they are those of the policy, so the adapters were on"
    yield Suspect("reference", MEASURED, right)

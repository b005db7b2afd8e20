"""The DPO objective on summed log-probs, for a whole batch at once.

Shape letters: G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True, eq=False)
class DpoTerms:
    """What DPO makes of a batch of pairs.

    Args:
        loss: Mean over the pairs; scalar.
        rewards: ``beta * (logp - ref_logp)``, chosen then rejected; [G, 2].
        margins: Chosen minus rejected reward; [G].
    """

    loss: Tensor
    rewards: Tensor
    margins: Tensor


def dpo_sigmoid(logps: Tensor, ref_logps: Tensor, *, beta: float, label_smoothing: float = 0.0) -> DpoTerms:
    """DPO with label smoothing: ``-(1 - e) log sigma(z) - e log sigma(-z)``, z the reward margin.

    Published: Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, eq. 7; smoothing as in Mitchell's "cDPO" note and
    TRL's ``label_smoothing``.

    Args:
        logps: Policy log-prob of each completion, summed over its tokens, chosen then rejected; [G, 2].
        ref_logps: The same of the frozen policy; [G, 2].
        beta: Scale of the rewards, above 0.
        label_smoothing: Assumed share of swapped labels e; at least 0 and below 0.5.

    Returns:
        Loss, rewards and margins.

    Raises:
        ValueError: ``beta`` or ``label_smoothing`` out of range, or tensors that are not two equal [G, 2], G >= 1.
    """
    if not beta > 0:
        raise ValueError(f"beta is {beta}: expected a number above 0")
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing}: expected at least 0 and below 0.5")
    if logps.shape != ref_logps.shape or logps.ndim != 2 or logps.shape[0] < 1 or logps.shape[1] != 2:
        raise ValueError(
            f"log-probs of shape {tuple(logps.shape)} and ref_logps of shape {tuple(ref_logps.shape)}: "
            "expected [groups, 2] for both, chosen then rejected"
        )
    rewards = beta * (logps - ref_logps)
    margins = rewards[:, 0] - rewards[:, 1]
    losses = -(1 - label_smoothing) * logsigmoid(margins) - label_smoothing * logsigmoid(-margins)
    return DpoTerms(losses.mean(), rewards, margins)

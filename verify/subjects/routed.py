"""The loss of routers in an unpacked pass, from what they make of every token of its sequences.

Legend: L layers with routers, T tokens of a sequence, N those of all sequences, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl.router_loss import load_balancing_loss
from verify.router_balance import RouterBalance


@dataclass(frozen=True, eq=False, slots=True)
class RoutedLogps:
    """What one pass of a subject without a loss of its own gives where the loss of routers is part of the objective.

    Args:
        per_token_logps: As in the contract of a subject.
        router_loss: Without its coefficient; differentiable scalar.
        router_balance: What it is made of.
        router_scores: Scores before the softmax, without a graph; float64 on the CPU, [L, N, E].
    """

    per_token_logps: list[Tensor]
    router_loss: Tensor
    router_balance: RouterBalance
    router_scores: Tensor


def routed(per_token_logps: list[Tensor], scores: Sequence[Tensor], per_token: int) -> RoutedLogps:
    """The loss of a batch in float64, and the balance behind it.

    Args:
        per_token_logps: Of the same pass.
        scores: Before the softmax, one [L, T, E] for each sequence.
        per_token: Experts that a token takes.

    Returns:
        All of it.
    """
    scores_LNE = torch.cat([of_sequence.double() for of_sequence in scores], dim=1)  # noqa: N806
    layers = list(scores_LNE.unbind())
    probs = scores_LNE.detach().softmax(-1).flatten(0, 1)
    chosen = torch.zeros_like(probs).scatter(1, probs.topk(per_token, dim=-1).indices, 1.0)
    return RoutedLogps(
        per_token_logps,
        load_balancing_loss(layers, per_token),
        RouterBalance(chosen.mean(0).cpu(), probs.mean(0).cpu()),
        scores_LNE.detach().cpu(),
    )

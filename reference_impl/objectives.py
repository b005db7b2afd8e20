"""Direct preference optimisation as published, one function per equation.

Symbols: y a completion of prompt x, c the chosen and r the rejected one of a pair, z the margin, e the label
smoothing, sigma the logistic function. Log-probs are in nats. Everything keeps the dtype that it is given and is
differentiable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def sequence_logps(per_token_logps: Sequence[Tensor]) -> Tensor:
    """``log p(y | x) = sum_t log p(y_t | x, y_<t)``, one scalar per completion.

    Args:
        per_token_logps: One 1-D tensor per completion; at least one, none of them empty.

    Returns:
        Summed log-probs, [completions].

    Raises:
        ValueError: No completion, or one without a token.
    """
    if not per_token_logps or any(logps.numel() == 0 for logps in per_token_logps):
        raise ValueError("an empty completion has no log-prob: every completion needs at least one token")
    return torch.stack([logps.sum() for logps in per_token_logps])


def rewards(logps: Tensor, ref_logps: Tensor, beta: float) -> Tensor:
    """``beta * (log p(y|x) - log p_ref(y|x))``: the implicit reward.

    Source: Rafailov et al. 2023, equation 5, without the term that depends on the prompt alone.

    Args:
        logps: Summed log-probs under the policy, [completions].
        ref_logps: The same under the frozen policy.
        beta: Strength of the pull towards the frozen policy, positive.

    Returns:
        Rewards, [completions].

    Raises:
        ValueError: A beta that is not positive and finite.
    """
    check_beta(beta)
    return beta * (logps - ref_logps)


def margins(chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
    """``z = reward(c) - reward(r)`` for each pair."""
    return chosen_rewards - rejected_rewards


def sigmoid_losses(margins: Tensor, label_smoothing: float) -> Tensor:
    """``-(1-e) log sigma(z) - e log sigma(-z)`` for each pair.

    Sources: Rafailov et al. 2023, equation 7, is e = 0; the smoothed form is Mitchell 2023, "A note on DPO with
    noisy preferences & relationship to IPO".

    Args:
        margins: z, [pairs].
        label_smoothing: e, the assumed share of swapped labels, in [0, 0.5).

    Returns:
        Losses, [pairs].

    Raises:
        ValueError: A label smoothing outside [0, 0.5).
    """
    check_label_smoothing(label_smoothing)
    return -(1 - label_smoothing) * logsigmoid(margins) - label_smoothing * logsigmoid(-margins)


def mean_loss(losses: Tensor, num_pairs: int) -> Tensor:
    """``(1/n) sum loss`` where n counts the pairs of the whole batch, of which ``losses`` may hold a part."""
    return losses.sum() / num_pairs


def sigmoid_loss_slopes(margins: Tensor, label_smoothing: float) -> Tensor:
    """``d loss / d z = -(1-e) sigma(-z) + e sigma(z)`` for each pair (derived)."""
    check_label_smoothing(label_smoothing)
    return -(1 - label_smoothing) * torch.sigmoid(-margins) + label_smoothing * torch.sigmoid(margins)


def token_coefficients(margins: Tensor, beta: float, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Derivative of the mean loss with respect to each token's log-prob (derived).

    ``d L / d logp_t = +- (beta / n) * d loss / d z``: the same for every token of a completion, plus for the chosen
    one and minus for the rejected one.

    Args:
        margins: z of all n pairs, [pairs].
        beta: As in :func:`rewards`.
        label_smoothing: As in :func:`sigmoid_losses`.

    Returns:
        The coefficient of a chosen token and of a rejected token in each pair, both [pairs].
    """
    check_beta(beta)
    chosen = beta * sigmoid_loss_slopes(margins, label_smoothing) / margins.numel()
    return chosen, -chosen


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often the chosen completion has the larger reward.

    Args:
        wins: Pairs with a margin above zero.
        ties: Pairs with a margin of exactly zero.
        losses: Pairs with a margin below zero.
    """

    wins: int
    ties: int
    losses: int

    @property
    def value(self) -> float:
        """The share of pairs won, where a tie counts one half."""
        return (self.wins + 0.5 * self.ties) / (self.wins + self.ties + self.losses)


def accuracy(margins: Tensor) -> Accuracy:
    """Count the signs of the margins.

    Args:
        margins: z, [pairs]; at least one, all finite.

    Returns:
        The counts, and through them the accuracy.

    Raises:
        ValueError: No pairs, or a margin that is not finite.
    """
    if margins.numel() == 0 or not bool(torch.isfinite(margins).all()):
        raise ValueError(f"accuracy of margins {margins.tolist()}: expected at least one, all of them finite")
    wins, ties = int((margins > 0).sum()), int((margins == 0).sum())
    return Accuracy(wins=wins, ties=ties, losses=margins.numel() - wins - ties)


def check_beta(beta: float) -> None:
    """Refuse a beta that is not positive and finite."""
    if not (math.isfinite(beta) and beta > 0):
        raise ValueError(f"beta is {beta!r}: it must be positive and finite")


def check_label_smoothing(label_smoothing: float) -> None:
    """Refuse a label smoothing outside [0, 0.5)."""
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing!r}: it must lie in [0, 0.5)")

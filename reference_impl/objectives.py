"""The objectives, one function per equation.

Symbols: y a completion of prompt x, c the chosen and r the rejected one of a pair, z the margin, e the label
smoothing, sigma the logistic function. Log-probs are in nats, and every function here sees those of supervised tokens
only. Everything keeps the dtype that it is given and is differentiable.

Legend: P positives and N negatives of one group.
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


def mean_loss(losses: Tensor, num_groups: int) -> Tensor:
    """``(1/n) sum loss`` where n counts the groups of the whole batch, of which ``losses`` may hold a part."""
    return losses.sum() / num_groups


def group_margins(positive_rewards: Tensor, negative_rewards: Tensor) -> Tensor:
    """``z_pn = reward(p) - reward(n)`` of every positive with every negative of one group.

    Args:
        positive_rewards: [P].
        negative_rewards: [N].

    Returns:
        Margins, [P, N].
    """
    return margins(positive_rewards[:, None], negative_rewards[None, :])


def group_sigmoid_loss(margins_PN: Tensor, label_smoothing: float) -> Tensor:
    """``(1 / (P N)) sum_p sum_n loss(z_pn)``, the pair loss that of :func:`sigmoid_losses`, for one group.

    Status: derived. It equals Rafailov et al. 2023, equation 7, at P = N = 1, and is All-Pairs of GroupDPO with summed
    instead of averaged log-probs.

    Args:
        margins_PN: From :func:`group_margins`.
        label_smoothing: As in :func:`sigmoid_losses`.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: A group without a positive or without a negative.
    """
    if margins_PN.numel() == 0:
        raise ValueError(f"margins of shape {tuple(margins_PN.shape)}: a group needs positives and negatives")
    return sigmoid_losses(margins_PN, label_smoothing).mean()


def sft_token_mean(supervised_logps: Sequence[Tensor], num_tokens: int) -> Tensor:
    """``-(1/T) sum_y sum_t log p(y_t | x, y_<t)``, T the supervised tokens of the whole batch.

    The negative log-likelihood per token: what cross-entropy over a batch with ignored labels computes.

    Args:
        supervised_logps: Log-probs of the supervised tokens, one 1-D tensor per completion; part of a batch or all.
        num_tokens: T.

    Returns:
        The share of these completions in the loss, a scalar.
    """
    return -sequence_logps(supervised_logps).sum() / num_tokens


def sft_example_mean(supervised_logps: Sequence[Tensor], num_completions: int) -> Tensor:
    """``-(1/C) sum_y (1/T_y) sum_t log p(y_t | x, y_<t)``, C the completions, T_y the supervised tokens of one.

    Every completion weighs the same here, every token in :func:`sft_token_mean`. Two completions of one and of three
    supervised tokens: the first has one half of this loss and one quarter of that.

    Args:
        supervised_logps: Log-probs of the supervised tokens, one 1-D tensor per completion; part of a batch or all.
        num_completions: C, of the whole batch.

    Returns:
        The share of these completions in the loss, a scalar.
    """
    lengths = [logps.numel() for logps in supervised_logps]
    sums = sequence_logps(supervised_logps)
    return -(sums / sums.new_tensor(lengths)).sum() / num_completions


def sigmoid_loss_slopes(margins: Tensor, label_smoothing: float) -> Tensor:
    """``d loss / d z = -(1-e) sigma(-z) + e sigma(z)`` for each pair (derived)."""
    check_label_smoothing(label_smoothing)
    return -(1 - label_smoothing) * torch.sigmoid(-margins) + label_smoothing * torch.sigmoid(margins)


def token_coefficients(margins: Tensor, beta: float, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Derivative of the mean loss over pairs with respect to each token's log-prob, for each pair (derived).

    ``d L / d logp_t = +- (beta / n) * d loss / d z``: the same for every token of a completion, plus for the chosen
    one and minus for the rejected one.

    Args:
        margins: z of all n pairs, of any shape.
        beta: As in :func:`rewards`.
        label_smoothing: As in :func:`sigmoid_losses`.

    Returns:
        The coefficient of a chosen token and of a rejected token in each pair, both shaped like ``margins``.
    """
    check_beta(beta)
    chosen = beta * sigmoid_loss_slopes(margins, label_smoothing) / margins.numel()
    return chosen, -chosen


def group_token_coefficients(
    margins_PN: Tensor, num_groups: int, beta: float, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Derivative of the mean loss over groups with respect to each supervised token's log-prob (derived).

    A completion takes part in as many pairs as there are completions on the other side:
    ``d L / d logp_t = (beta / (G P N)) sum_n loss'(z_pn)`` for a token of positive p and
    ``-(beta / (G P N)) sum_p loss'(z_pn)`` for one of negative n, in a batch of G groups. They sum to zero over the
    completions of a group.

    Args:
        margins_PN: From :func:`group_margins`.
        num_groups: G, the groups of the whole batch.
        beta: As in :func:`rewards`.
        label_smoothing: As in :func:`sigmoid_losses`.

    Returns:
        The coefficient of a token of each positive, [P], and of each negative, [N].
    """
    chosen_PN, rejected_PN = token_coefficients(margins_PN, beta, label_smoothing)
    return chosen_PN.sum(dim=1) / num_groups, rejected_PN.sum(dim=0) / num_groups


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

"""What the objectives are made of: scores, rewards, margins and means of log-likelihoods, one function per equation.

The losses on rewards are in :mod:`reference_impl.pair_losses` and :mod:`reference_impl.group_objectives`.

Symbols: y a completion of prompt x, T_y its supervised tokens. Log-probs are in nats, and every function here sees
those of supervised tokens only. Everything keeps the dtype that it is given and is differentiable.

Legend: P positives and N negatives of one group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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


def mean_logps(per_token_logps: Sequence[Tensor]) -> Tensor:
    """``(1/T_y) sum_t log p(y_t | x, y_<t)``, one scalar per completion.

    Args:
        per_token_logps: One 1-D tensor per completion; at least one, none of them empty.

    Returns:
        Length-normalised log-probs, [completions].

    Raises:
        ValueError: No completion, or one without a token.
    """
    sums = sequence_logps(per_token_logps)
    return sums / sums.new_tensor([logps.numel() for logps in per_token_logps])


def rewards(scores: Tensor, ref_scores: Tensor, beta: float) -> Tensor:
    """``u = beta * (s - s_ref)``: the implicit reward, s the log-prob of a completion.

    Source: Rafailov et al. 2023, equation 5, without the term that depends on the prompt alone; s is
    ``log p(y | x)`` there, and objectives that normalise by length put its mean over tokens.

    Args:
        scores: Summed or mean log-probs under the policy, [completions].
        ref_scores: The same under the frozen policy.
        beta: Strength of the pull towards the frozen policy, positive.

    Returns:
        Rewards, [completions].

    Raises:
        ValueError: A beta that is not positive and finite.
    """
    check_beta(beta)
    return beta * (scores - ref_scores)


def margins(chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
    """``z = reward(c) - reward(r)`` for each pair."""
    return chosen_rewards - rejected_rewards


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


def positive_nll(positive_logps: Sequence[Tensor]) -> Tensor:
    """``(1/P) sum_p -(1/T_p) sum_t log p(p_t | x, p_<t)``: the negative log-likelihood term of one group.

    Status: published with one positive (Pang et al. 2024, Iterative RPO, equation 1) and for groups (GroupDPO). It
    averages over tokens also where the preference term sums them.

    Args:
        positive_logps: Log-probs of the supervised tokens of the group's positives, one 1-D tensor for each.

    Returns:
        The term without its weight, a scalar.
    """
    return -mean_logps(positive_logps).mean()


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
    return -mean_logps(supervised_logps).sum() / num_completions


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


def check_nll_weight(nll_weight: float) -> None:
    """Refuse a weight that is negative or not finite."""
    if not (math.isfinite(nll_weight) and nll_weight >= 0):
        raise ValueError(f"nll_weight is {nll_weight!r}: it must be finite and at least 0")

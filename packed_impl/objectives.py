"""Objectives on the log-probs of a whole batch at once: DPO's sigmoid loss by itself, and supervised fine-tuning.

Shape letters: G groups, K completions and C completion tokens of all groups, P pairs of a positive and a negative.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from packed_impl.preference import PreferenceObjective, PreferenceTerms

SFT_MEANS = ("token", "example")


def dpo_sigmoid(logps: Tensor, ref_logps: Tensor, *, beta: float, label_smoothing: float = 0.0) -> PreferenceTerms:
    """DPO with label smoothing: ``-(1 - e) log sigma(z) - e log sigma(-z)``, z the reward margin.

    Published: Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, eq. 7; smoothing as in Mitchell's "cDPO" note and
    TRL's ``label_smoothing``.

    Args:
        logps: Policy log-prob of each completion, summed over its tokens, chosen then rejected; [G, 2].
        ref_logps: The same of the frozen policy; [G, 2].
        beta: Scale of the rewards, above 0.
        label_smoothing: Assumed share of swapped labels e; at least 0 and below 0.5.

    Returns:
        Loss, rewards [G, 2] and margins [G].

    Raises:
        ValueError: ``beta`` or ``label_smoothing`` out of range, or tensors that are not two equal [G, 2], G >= 1.
    """
    if logps.shape != ref_logps.shape or logps.ndim != 2 or logps.shape[0] < 1 or logps.shape[1] != 2:
        raise ValueError(
            f"log-probs of shape {tuple(logps.shape)} and ref_logps of shape {tuple(ref_logps.shape)}: "
            "expected [groups, 2] for both, chosen then rejected"
        )
    pairs = [(1, 1)] * len(logps)
    terms = group_sigmoid(logps.flatten(), ref_logps.flatten(), pairs, beta=beta, label_smoothing=label_smoothing)
    return PreferenceTerms(terms.loss, terms.rewards.view(-1, 2), terms.margins)


def group_sigmoid(
    logps_K: Tensor,
    ref_logps_K: Tensor,
    sizes: Sequence[tuple[int, int]],
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> PreferenceTerms:
    """The sigmoid loss of groups: the mean over every pair of a positive and a negative of a group, then over groups.

    Derived: the loss of `dpo_sigmoid` for each pair; equal to it where every group is 1+1.

    Args:
        logps_K: Policy log-prob of each completion, summed over its supervised tokens; [K].
        ref_logps_K: The same of the frozen policy; [K].
        sizes: Number of positives and of negatives of each group; at least one each.
        beta: Scale of the rewards, above 0.
        label_smoothing: Assumed share of swapped labels; at least 0 and below 0.5.

    Returns:
        Loss, rewards [K] and margins [P].

    Raises:
        ValueError: ``beta`` or ``label_smoothing`` out of range, a group without a positive or a negative, or tensors
            that do not hold one value per completion.
    """
    objective = PreferenceObjective("sigmoid", beta, label_smoothing)
    return objective.terms(logps_K, ref_logps_K, torch.ones_like(logps_K), sizes)


def supervised_sums(logps_C: Tensor, supervised_C: Tensor, completion_lengths: Sequence[int]) -> Tensor:
    """Sum of the log-probs of each completion's supervised tokens.

    Args:
        logps_C: Log-prob of every completion token; [C].
        supervised_C: Which of them count; bool, [C].
        completion_lengths: Number of tokens of each completion; they add up to C.

    Returns:
        [K].
    """
    counted_C = torch.where(supervised_C, logps_C, 0.0)
    return torch.stack([logps.sum() for logps in torch.split(counted_C, list(completion_lengths))])


def supervised_counts(supervised_C: Tensor, completion_lengths: Sequence[int]) -> Tensor:
    """Number of supervised tokens of each completion; int64, [K]."""
    return torch.stack([counted.sum() for counted in torch.split(supervised_C, list(completion_lengths))])


def sft_mean(logps_C: Tensor, supervised_C: Tensor, completion_lengths: Sequence[int], *, mean: str) -> Tensor:
    """Supervised fine-tuning: a mean of ``-log p`` over supervised tokens.

    The two means weigh completions differently. Two completions of one and of three supervised tokens, ``a`` and
    ``b b b``: "token" gives (a + 3 b) / 4, "example" gives (a + b) / 2.

    Args:
        logps_C: Log-prob of every completion token; [C].
        supervised_C: Which of them count; bool, [C], at least one in each completion.
        completion_lengths: Number of tokens of each completion; they add up to C.
        mean: "token": over the supervised tokens of the batch. "example": over completions, of each one's own mean.

    Returns:
        Scalar.

    Raises:
        ValueError: An unknown ``mean``.
    """
    if mean not in SFT_MEANS:
        raise ValueError(f"unknown mean {mean!r}: expected one of {', '.join(SFT_MEANS)}")
    sums_K = supervised_sums(logps_C, supervised_C, completion_lengths)
    counts_K = supervised_counts(supervised_C, completion_lengths)
    return -sums_K.sum() / counts_K.sum() if mean == "token" else -(sums_K / counts_K).mean()

"""The preference objectives by name: their parameters, scores, the loss of a group and its slopes.

Symbols: s the score of a completion, u its reward, phi the loss of a group, G the groups of a batch, T_i the
supervised tokens of completion i.

Legend: P positives and N negatives of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

import torch
from torch import Tensor

from reference_impl.group_objectives import (
    all_pairs_loss,
    all_pairs_slopes,
    margin_loss,
    margin_slopes,
    mpo_loss,
    mpo_slopes,
    softmax_loss,
    softmax_slopes,
)
from reference_impl.objectives import (
    check_beta,
    check_label_smoothing,
    check_nll_weight,
    group_margins,
    mean_logps,
    sequence_logps,
)
from reference_impl.pair_losses import (
    hinge_losses,
    hinge_slopes,
    ipo_losses,
    ipo_slopes,
    mean_over_pairs,
    reward_slopes_of_pairs,
    robust_losses,
    robust_slopes,
    sigmoid_losses,
    sigmoid_slopes,
)

PreferenceName = Literal[
    "sigmoid",
    "robust",
    "hinge",
    "ipo",
    "sigmoid_norm",
    "rpo",
    "groupdpo-margin",
    "groupdpo-mpo",
    "groupdpo-softmax",
    "groupdpo-all-pairs",
]
PREFERENCE_NAMES: tuple[PreferenceName, ...] = get_args(PreferenceName)
SMOOTHED: tuple[PreferenceName, ...] = ("sigmoid", "robust", "sigmoid_norm", "rpo")
"""Objectives with label smoothing."""
_SUMMED: tuple[PreferenceName, ...] = ("sigmoid", "robust", "hinge", "rpo")
_WITH_NLL: tuple[PreferenceName, ...] = (
    "rpo",
    "groupdpo-margin",
    "groupdpo-mpo",
    "groupdpo-softmax",
    "groupdpo-all-pairs",
)


@dataclass(frozen=True, slots=True)
class Preference:
    """A preference objective: ``mean over groups of phi(u) + nll_weight * NLL``.

    "rpo" is the sigmoid loss with a likelihood term (Pang et al. 2024, Iterative RPO), "sigmoid_norm" the sigmoid loss
    of length-normalised log-probs (Lambert et al. 2024, Tulu 3), "groupdpo-*" the objectives of GroupDPO. The sources
    of the others stand with their losses.

    Args:
        name: Name of the objective.
        beta: Strength of the pull towards the frozen policy, positive and finite.
        label_smoothing: Assumed share of swapped labels, in [0, 0.5); 0 for objectives that have none.
        nll_weight: Weight of :func:`reference_impl.objectives.positive_nll`, finite and at least 0.

    Raises:
        ValueError: An unknown name, or a value outside its range.
    """

    name: PreferenceName
    beta: float
    label_smoothing: float
    nll_weight: float

    def __post_init__(self) -> None:
        if self.name not in PREFERENCE_NAMES:
            raise ValueError(f"preference objective {self.name!r}: expected one of {', '.join(PREFERENCE_NAMES)}")
        check_beta(self.beta)
        check_label_smoothing(self.label_smoothing)
        if self.label_smoothing and self.name not in SMOOTHED:
            raise ValueError(
                f"label_smoothing is {self.label_smoothing!r}: {self.name} has none, so it must be 0; "
                f"it is part of {', '.join(SMOOTHED)}"
            )
        check_nll_weight(self.nll_weight)

    @property
    def sums_tokens(self) -> bool:
        """Whether a completion scores the sum of its log-probs; else their mean."""
        return self.name in _SUMMED


def default_nll_weight(name: PreferenceName) -> float:
    """The weight that the objective is published with: 1 for RPO and GroupDPO, 0 (no such term) for the others."""
    return 1.0 if name in _WITH_NLL else 0.0


def scores(supervised_logps: Sequence[Tensor], objective: Preference) -> Tensor:
    """The score s of each completion: its log-probs summed, or averaged over its supervised tokens.

    Args:
        supervised_logps: Log-probs of the supervised tokens, one 1-D tensor per completion.
        objective: The objective.

    Returns:
        Scores, [completions].
    """
    return sequence_logps(supervised_logps) if objective.sums_tokens else mean_logps(supervised_logps)


def group_loss(rewards_P: Tensor, rewards_N: Tensor, objective: Preference) -> Tensor:
    """The loss phi of one group, without the likelihood term.

    Args:
        rewards_P: Of its positives.
        rewards_N: Of its negatives.
        objective: The objective.

    Returns:
        phi, a scalar.

    Raises:
        ValueError: No positives or no negatives.
    """
    _check_sides(rewards_P, rewards_N)
    margins_PN, smoothing = group_margins(rewards_P, rewards_N), objective.label_smoothing
    match objective.name:
        case "sigmoid" | "sigmoid_norm" | "rpo":
            return mean_over_pairs(sigmoid_losses(margins_PN, smoothing))
        case "robust":
            return mean_over_pairs(robust_losses(margins_PN, smoothing))
        case "hinge":
            return mean_over_pairs(hinge_losses(margins_PN))
        case "ipo":
            return mean_over_pairs(ipo_losses(margins_PN, objective.beta))
        case "groupdpo-margin":
            return margin_loss(rewards_P, rewards_N)
        case "groupdpo-mpo":
            return mpo_loss(rewards_P, rewards_N)
        case "groupdpo-softmax":
            return softmax_loss(rewards_P, rewards_N)
        case "groupdpo-all-pairs":
            return all_pairs_loss(rewards_P, rewards_N)
        case never:
            assert_never(never)


def reward_slopes(rewards_P: Tensor, rewards_N: Tensor, objective: Preference) -> tuple[Tensor, Tensor]:
    """``c_i = d phi / d u_i`` of one group, in closed form.

    Args:
        rewards_P: Of its positives.
        rewards_N: Of its negatives.
        objective: The objective.

    Returns:
        The slopes, [P] and [N]; they sum to zero together.

    Raises:
        ValueError: No positives or no negatives.
    """
    _check_sides(rewards_P, rewards_N)
    margins_PN, smoothing = group_margins(rewards_P, rewards_N), objective.label_smoothing
    match objective.name:
        case "sigmoid" | "sigmoid_norm" | "rpo":
            return reward_slopes_of_pairs(sigmoid_slopes(margins_PN, smoothing))
        case "robust":
            return reward_slopes_of_pairs(robust_slopes(margins_PN, smoothing))
        case "hinge":
            return reward_slopes_of_pairs(hinge_slopes(margins_PN))
        case "ipo":
            return reward_slopes_of_pairs(ipo_slopes(margins_PN, objective.beta))
        case "groupdpo-margin":
            return margin_slopes(rewards_P, rewards_N)
        case "groupdpo-mpo":
            return mpo_slopes(rewards_P, rewards_N)
        case "groupdpo-softmax":
            return softmax_slopes(rewards_P, rewards_N)
        case "groupdpo-all-pairs":
            return all_pairs_slopes(rewards_P, rewards_N)
        case never:
            assert_never(never)


def group_token_coefficients(
    rewards_P: Tensor, rewards_N: Tensor, lengths: Sequence[int], num_groups: int, objective: Preference
) -> Tensor:
    """Derivative of a batch's loss with respect to the log-prob of each supervised token of one group (derived).

    ``d L / d logp_t = (1/G) [beta c_i d s_i / d logp_t - nll_weight / (P T_i)]``, the last term for positives only;
    ``d s_i / d logp_t`` is 1 where tokens are summed and ``1 / T_i`` where they are averaged.

    Args:
        rewards_P: Of its positives.
        rewards_N: Of its negatives.
        lengths: T_i, positives before negatives.
        num_groups: G, the groups of the whole batch.
        objective: The objective.

    Returns:
        The coefficient of every supervised token of each completion, positives before negatives, [P + N].
    """
    slopes_P, slopes_N = reward_slopes(rewards_P, rewards_N, objective)
    num_tokens = rewards_P.new_tensor(lengths)
    num_tokens_P, num_tokens_N = num_tokens[: len(rewards_P)], num_tokens[len(rewards_P) :]
    of_tokens_P, of_tokens_N = objective.beta * slopes_P, objective.beta * slopes_N
    if not objective.sums_tokens:
        of_tokens_P, of_tokens_N = of_tokens_P / num_tokens_P, of_tokens_N / num_tokens_N
    of_tokens_P = of_tokens_P - objective.nll_weight / (len(rewards_P) * num_tokens_P)
    return torch.cat((of_tokens_P, of_tokens_N)) / num_groups


def _check_sides(rewards_P: Tensor, rewards_N: Tensor) -> None:
    if not (rewards_P.numel() and rewards_N.numel()):
        raise ValueError(
            f"{rewards_P.numel()} positive and {rewards_N.numel()} negative rewards: a group needs at least one of each"
        )

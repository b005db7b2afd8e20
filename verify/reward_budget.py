"""Budgets of a reward model: margins, the loss, and the coefficients of gradients.

Rewards are measured and budgeted as log-probs are elsewhere. What follows from them is less than with a preference: no
sum over tokens, no beta, no reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from verify.budget import Budget, Statistic
from verify.comparison import Quantity
from verify.groups import PreferenceGroup
from verify.noise import BudgetKind, NoiseFloor
from verify.observation import Observation
from verify.preference_budget import EPSILON, margins_by_group, relative_noise
from verify.tolerance import Policy


def reward_model_budgets(expected: Observation, rewards: Mapping[Statistic, Budget]) -> dict[Quantity, float]:
    """Budgets of margins and loss, from those of the rewards.

    No reward is off by more than the budget of the maximum, nor by more than sqrt(K) times that of the RMS over K
    completions; a margin is two rewards. The loss is a mean over pairs of -log sigma(z), whose slope lies in (-1, 0):
    it moves by no more than the margins, and by its own rounding in float32.

    Args:
        expected: The oracle's or the witness's observation.
        rewards: Budgets of the rewards.

    Returns:
        The budgets of a margin and of the loss, in nats.
    """
    of_a_reward = min(rewards["max"].value, math.sqrt(len(expected.rewards)) * rewards["rms"].value)
    rounding = loss_rounding(expected.margins, float(expected.loss), EPSILON)
    return {"margins": 2 * of_a_reward, "loss": 2 * of_a_reward + rounding}


def loss_rounding(margins: Tensor, loss: float, epsilon: float) -> float:
    """How far rounding can move the loss of given rewards.

    Of each margin eps |z|, times a slope of at most 1; of the losses (ceil(log2 P) + 3) eps, as an exponential, a
    logarithm, a mean and the levels of a pairwise sum over the P pairs each round once (derived).

    Args:
        margins: The margins, [pairs].
        loss: The loss, in nats.
        epsilon: Of the dtype that the loss is computed in.

    Returns:
        The bound, in nats.
    """
    levels = math.ceil(math.log2(max(2, len(margins)))) + 3
    return epsilon * (float(margins.abs().mean()) + levels * abs(loss))


def reward_coefficient_noise(
    kind: BudgetKind,
    groups: Sequence[PreferenceGroup],
    expected: Observation,
    *,
    case: str,
    noise: NoiseFloor,
    policy: Policy,
) -> float:
    """Relative noise of the coefficients d loss / d reward, which weight the gradients of a group's completions.

    For one pair c(z) = -sigma(-z), so |dc| = sigma(z) sigma(-z) |dz| (derived). A margin is the difference of two
    rewards of noise b: |dz| is taken as ``coefficient_sigmas`` standard deviations, sqrt(2) b, or as the witness's own
    error where that is larger. As in :func:`verify.preference_budget.coefficient_noise`.

    Args:
        kind: Distance to the oracle or to the witness.
        groups: The case's groups.
        expected: The oracle's or the witness's observation.
        case: Name of the case.
        noise: The noise floor of this dtype.
        policy: For the number of standard deviations.

    Returns:
        The largest relative noise over the groups.
    """
    rms = max(noise.by_case[case, kind, "rewards", ""].rms, noise.pooled_rms[kind, "rewards", ""])
    own = noise.by_case[case, kind, "margins", ""].max
    spread = max(own, policy.small_sample.coefficient_sigmas * math.sqrt(2) * rms)
    return max(
        relative_noise(torch.sigmoid(-margins), spread * torch.sigmoid(margins) * torch.sigmoid(-margins))
        for margins in margins_by_group(expected.margins, groups)
    )

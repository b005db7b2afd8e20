"""The objectives applied to the log-probs of a batch: its loss, rewards and margins, and its token coefficients.

A batch is a sum of the shares of its groups, each counted against the sizes of the whole batch, so that a group can be
differentiated on its own (:mod:`reference_impl.step`) and no mean of means arises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from reference_impl.groups import Group, unpack
from reference_impl.objectives import (
    group_margins,
    mean_loss,
    positive_nll,
    rewards,
    sft_example_mean,
    sft_token_mean,
)
from reference_impl.preference import (
    PREFERENCE_NAMES,
    SMOOTHED,
    Preference,
    PreferenceName,
    default_nll_weight,
    group_loss,
    group_token_coefficients,
    scores,
)

SftName = Literal["sft-token-mean", "sft-example-mean"]
ObjectiveName = PreferenceName | SftName
OBJECTIVE_NAMES: tuple[ObjectiveName, ...] = (*PREFERENCE_NAMES, *get_args(SftName))

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Sft:
    """Supervised fine-tuning.

    Args:
        mean_over: What weighs the same: every supervised token of the batch, or every completion.
    """

    mean_over: Literal["tokens", "examples"]


Objective = Preference | Sft


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """What the means of a batch divide by.

    Args:
        groups: Number of groups.
        completions: Number of completions.
        supervised_tokens: Number of supervised tokens.
    """

    groups: int
    completions: int
    supervised_tokens: int


@dataclass(frozen=True, slots=True)
class ObjectiveValues:
    """What an objective makes of log-probs, in their dtype and differentiable.

    Args:
        loss: A scalar; of a part of a batch its share, so that shares add up.
        rewards: One per completion, [completions]; empty for SFT.
        margins: One per positive and negative of a group: group by group, positive by positive, [pairs]; empty for
            SFT.
    """

    loss: Tensor
    rewards: Tensor
    margins: Tensor


def objective_named(
    name: ObjectiveName, beta: float | None, label_smoothing: float | None, nll_weight: float | None
) -> Objective:
    """The objective of that name.

    Args:
        name: One of ``OBJECTIVE_NAMES``.
        beta: Needed by every preference objective, ignored by SFT.
        label_smoothing: Needed by the objectives that have it (``SMOOTHED``), None or 0 for the other preference
            objectives, ignored by SFT.
        nll_weight: Weight of the likelihood of positives; None for that of
            :func:`reference_impl.preference.default_nll_weight`. Ignored by SFT.

    Returns:
        The objective.

    Raises:
        ValueError: An unknown name, or a parameter that is missing or outside its range.
    """
    if name == "sft-token-mean":
        return Sft("tokens")
    if name == "sft-example-mean":
        return Sft("examples")
    if name not in PREFERENCE_NAMES:
        raise ValueError(f"objective {name!r}: expected one of {', '.join(OBJECTIVE_NAMES)}")
    if name in SMOOTHED and (beta is None or label_smoothing is None):
        raise ValueError(f"{name} with beta {beta} and label_smoothing {label_smoothing}: it needs both")
    if beta is None:
        raise ValueError(f"{name} with beta None: it needs one, positive and finite")
    return Preference(
        name,
        beta,
        label_smoothing=label_smoothing or 0.0,
        nll_weight=default_nll_weight(name) if nll_weight is None else nll_weight,
    )


def check_groups(groups: Sequence[Group], objective: Objective) -> BatchSizes:
    """Refuse groups that the objective has no meaning for.

    Args:
        groups: The groups of the whole batch.
        objective: The objective.

    Returns:
        The sizes of the batch.

    Raises:
        ValueError: No groups, a group that is none (see :func:`reference_impl.groups.unpack`), under a preference
            objective a group without positives or without negatives, or under SFT one with negatives.
    """
    sequences = unpack(groups)
    for index, group in enumerate(groups):
        num_positives, num_negatives = len(group.positives), len(group.negatives)
        found = f"group {index} has {num_positives} positives and {num_negatives} negatives"
        if isinstance(objective, Preference) and not (num_positives and num_negatives):
            raise ValueError(f"{found}: the {objective.name} loss compares them, so it needs at least one of each")
        if isinstance(objective, Sft) and num_negatives:
            raise ValueError(f"{found}: SFT learns from positives only, so it takes no negatives")
    return BatchSizes(
        groups=len(groups),
        completions=len(sequences),
        supervised_tokens=sum(len(sequence.supervised) for sequence in sequences),
    )


def apply_objective(
    logps: Sequence[Tensor],
    ref_logps: Sequence[Tensor],
    groups: Sequence[Group],
    *,
    objective: ObjectiveName,
    beta: float | None = None,
    label_smoothing: float | None = None,
    nll_weight: float | None = None,
) -> ObjectiveValues:
    """Apply an objective to the per-token log-probs of a batch.

    Args:
        logps: Policy log-probs, one 1-D tensor with a value for every completion token, unsupervised ones included,
            per completion: group by group, positives before negatives.
        ref_logps: The same under the frozen policy; empty for SFT. No gradient flows into them.
        groups: The groups.
        objective: Name of the objective.
        beta: As in :func:`objective_named`.
        label_smoothing: As in :func:`objective_named`.
        nll_weight: As in :func:`objective_named`.

    Returns:
        Loss, rewards and margins in the dtype of the log-probs.

    Raises:
        ValueError: What :func:`objective_named` and :func:`check_groups` refuse, or log-probs that are not one vector
            per completion with one value per token.
    """
    chosen_objective = objective_named(objective, beta, label_smoothing, nll_weight)
    sizes = check_groups(groups, chosen_objective)
    _check_logps("log-probs", logps, groups)
    if isinstance(chosen_objective, Preference):
        _check_logps("reference log-probs", ref_logps, groups)
    elif ref_logps:
        raise ValueError(f"{len(ref_logps)} reference log-probs for {objective}: SFT has no frozen policy")
    parts = zip(groups, _by_group(logps, groups), _by_group(ref_logps, groups), strict=True)
    shares = [group_share(of_group, ref, group, chosen_objective, sizes) for group, of_group, ref in parts]
    return ObjectiveValues(
        loss=torch.stack([share.loss for share in shares]).sum(),
        rewards=torch.cat([share.rewards for share in shares]),
        margins=torch.cat([share.margins for share in shares]),
    )


def group_share(
    logps: Sequence[Tensor],
    ref_logps: Sequence[Tensor],
    group: Group,
    objective: Objective,
    sizes: BatchSizes,
) -> ObjectiveValues:
    """The share of one group in the objective of a batch.

    Args:
        logps: Policy log-probs of the group's completions, one value per completion token.
        ref_logps: The same under the frozen policy; empty for SFT.
        group: The group.
        objective: The objective.
        sizes: Of the whole batch.

    Returns:
        The group's part of the loss, and its rewards and margins.
    """
    supervised = _supervised(logps, group)
    if isinstance(objective, Sft):
        if objective.mean_over == "tokens":
            loss = sft_token_mean(supervised, sizes.supervised_tokens)
        else:
            loss = sft_example_mean(supervised, sizes.completions)
        return ObjectiveValues(loss, rewards=loss.new_empty(0), margins=loss.new_empty(0))
    # The frozen policy is a constant of the objective, whatever graph its log-probs come with.
    ref_scores = scores(_supervised(ref_logps, group), objective).detach()
    group_rewards = rewards(scores(supervised, objective), ref_scores, objective.beta)
    num_positives = len(group.positives)
    rewards_P, rewards_N = group_rewards[:num_positives], group_rewards[num_positives:]
    loss = group_loss(rewards_P, rewards_N, objective)
    # Left out rather than multiplied by 0, which would make NaN of a log-prob of minus infinity.
    if objective.nll_weight:
        loss = loss + objective.nll_weight * positive_nll(supervised[:num_positives])
    return ObjectiveValues(
        mean_loss(loss, sizes.groups), group_rewards, margins=group_margins(rewards_P, rewards_N).flatten()
    )


def batch_token_coefficients(
    rewards: Tensor,
    groups: Sequence[Group],
    *,
    objective: ObjectiveName,
    beta: float | None = None,
    label_smoothing: float | None = None,
    nll_weight: float | None = None,
) -> tuple[Tensor, ...]:
    """Derivative of the loss of a batch with respect to every completion token's log-prob, in closed form (derived).

    ``d L / d logp_t`` is that of :func:`reference_impl.preference.group_token_coefficients` for a preference objective,
    ``-1 / T`` for the token mean over T supervised tokens, ``-1 / (C T_y)`` for the mean over C examples; 0 on tokens
    that are not supervised.

    Args:
        rewards: Those of :func:`apply_objective`, [completions]; empty for SFT, where they give dtype and device only.
        groups: The groups.
        objective: Name of the objective.
        beta: As in :func:`objective_named`.
        label_smoothing: As in :func:`objective_named`.
        nll_weight: As in :func:`objective_named`.

    Returns:
        One 1-D tensor per completion, one value per completion token.

    Raises:
        ValueError: What :func:`objective_named` and :func:`check_groups` refuse, or another number of rewards.
    """
    chosen_objective = objective_named(objective, beta, label_smoothing, nll_weight)
    sizes = check_groups(groups, chosen_objective)
    num_rewards = sizes.completions if isinstance(chosen_objective, Preference) else 0
    if rewards.shape != (num_rewards,):
        raise ValueError(
            f"rewards of shape {tuple(rewards.shape)}: {objective} gives {num_rewards} to the {sizes.completions} "
            f"completions of these groups, so ({num_rewards},)"
        )
    sequences = unpack(groups)
    lengths = [len(sequence.supervised) for sequence in sequences]
    if isinstance(chosen_objective, Preference):
        per_completion = _preference_coefficients(rewards, groups, lengths, chosen_objective)
    elif chosen_objective.mean_over == "tokens":
        per_completion = rewards.new_full((sizes.completions,), -1 / sizes.supervised_tokens)
    else:
        per_completion = -1 / (sizes.completions * rewards.new_tensor(lengths))
    coefficients = []
    for sequence, coefficient in zip(sequences, per_completion, strict=True):
        of_tokens = rewards.new_zeros(len(sequence.completion_ids))
        of_tokens[list(sequence.supervised)] = coefficient
        coefficients.append(of_tokens)
    return tuple(coefficients)


def _preference_coefficients(
    rewards: Tensor, groups: Sequence[Group], lengths: Sequence[int], objective: Preference
) -> Tensor:
    """The coefficient of a supervised token of each completion, [completions]; ``lengths`` their supervised tokens."""
    coefficients = []
    for group, of_group, lengths_of_group in zip(
        groups, _by_group(rewards, groups), _by_group(lengths, groups), strict=True
    ):
        first_negative = len(group.positives)
        coefficients.append(
            group_token_coefficients(
                torch.stack(of_group[:first_negative]),
                torch.stack(of_group[first_negative:]),
                lengths_of_group,
                len(groups),
                objective,
            )
        )
    return torch.cat(coefficients)


def _by_group(values: Iterable[_Value], groups: Sequence[Group]) -> Iterator[list[_Value]]:
    """Split values that are listed completion by completion into those of each group."""
    remaining = iter(values)
    for group in groups:
        yield list(islice(remaining, len(group.positives) + len(group.negatives)))


def _supervised(logps: Sequence[Tensor], group: Group) -> list[Tensor]:
    """The log-probs that count. Picked, not multiplied with a mask, so that no other value can matter, not even NaN."""
    return [of[list(sequence.supervised)] for of, sequence in zip(logps, unpack([group]), strict=True)]


def _check_logps(name: str, logps: Sequence[Tensor], groups: Sequence[Group]) -> None:
    sequences = unpack(groups)
    if len(logps) != len(sequences):
        raise ValueError(f"{name} of {len(logps)} completions: the groups have {len(sequences)}")
    for place, (of_completion, sequence) in enumerate(zip(logps, sequences, strict=True)):
        if of_completion.shape != (len(sequence.completion_ids),):
            raise ValueError(
                f"{name} of completion {place} have shape {tuple(of_completion.shape)}: "
                f"expected one for each of its {len(sequence.completion_ids)} tokens"
            )

"""The objectives applied to the log-probs of a batch: its loss, rewards and margins, and its token coefficients.

A batch is a sum of the shares of its groups, each counted against the sizes of the whole batch, so that a group can be
differentiated on its own (:mod:`reference_impl.step`) and no mean of means arises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import torch
from torch import Tensor

from reference_impl.groups import Group, unpack
from reference_impl.objectives import (
    check_beta,
    check_label_smoothing,
    group_margins,
    group_sigmoid_loss,
    group_token_coefficients,
    mean_loss,
    rewards,
    sequence_logps,
    sft_example_mean,
    sft_token_mean,
)

ObjectiveName = Literal["sigmoid", "sft-token-mean", "sft-example-mean"]


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """Parameters of the sigmoid loss.

    Args:
        beta: Strength of the pull towards the frozen policy.
        label_smoothing: Assumed share of swapped labels.

    Raises:
        ValueError: A value outside its range.
    """

    beta: float
    label_smoothing: float

    def __post_init__(self) -> None:
        check_beta(self.beta)
        check_label_smoothing(self.label_smoothing)


@dataclass(frozen=True, slots=True)
class Sft:
    """Supervised fine-tuning.

    Args:
        mean_over: What weighs the same: every supervised token of the batch, or every completion.
    """

    mean_over: Literal["tokens", "examples"]


Objective = Sigmoid | Sft


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


def objective_named(name: ObjectiveName, beta: float | None, label_smoothing: float | None) -> Objective:
    """The objective of that name.

    Args:
        name: "sigmoid", "sft-token-mean" or "sft-example-mean".
        beta: Needed by the sigmoid loss, ignored by the others.
        label_smoothing: Needed by the sigmoid loss, ignored by the others.

    Returns:
        The objective.

    Raises:
        ValueError: An unknown name, or a parameter that is missing or outside its range.
    """
    if name == "sigmoid":
        if beta is None or label_smoothing is None:
            raise ValueError(f"sigmoid with beta {beta} and label_smoothing {label_smoothing}: it needs both")
        return Sigmoid(beta, label_smoothing)
    if name == "sft-token-mean":
        return Sft("tokens")
    if name == "sft-example-mean":
        return Sft("examples")
    raise ValueError(f"objective {name!r}: expected one of {', '.join(get_args(ObjectiveName))}")


def check_groups(groups: Sequence[Group], objective: Objective) -> BatchSizes:
    """Refuse groups that the objective has no meaning for.

    Args:
        groups: The groups of the whole batch.
        objective: The objective.

    Returns:
        The sizes of the batch.

    Raises:
        ValueError: No groups, a group that is none (see :func:`reference_impl.groups.unpack`), under the sigmoid loss a
            group without positives or without negatives, or under SFT one with negatives.
    """
    sequences = unpack(groups)
    for index, group in enumerate(groups):
        num_positives, num_negatives = len(group.positives), len(group.negatives)
        found = f"group {index} has {num_positives} positives and {num_negatives} negatives"
        if isinstance(objective, Sigmoid) and not (num_positives and num_negatives):
            raise ValueError(f"{found}: the sigmoid loss compares them, so it needs at least one of each")
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

    Returns:
        Loss, rewards and margins in the dtype of the log-probs.

    Raises:
        ValueError: What :func:`objective_named` and :func:`check_groups` refuse, or log-probs that are not one vector
            per completion with one value per token.
    """
    chosen_objective = objective_named(objective, beta, label_smoothing)
    sizes = check_groups(groups, chosen_objective)
    _check_logps("log-probs", logps, groups)
    if isinstance(chosen_objective, Sigmoid):
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
    ref_sums = sequence_logps(_supervised(ref_logps, group)).detach()
    group_rewards = rewards(sequence_logps(supervised), ref_sums, objective.beta)
    num_positives = len(group.positives)
    margins_PN = group_margins(group_rewards[:num_positives], group_rewards[num_positives:])
    loss = mean_loss(group_sigmoid_loss(margins_PN, objective.label_smoothing), sizes.groups)
    return ObjectiveValues(loss, group_rewards, margins_PN.flatten())


def batch_token_coefficients(
    margins: Tensor,
    groups: Sequence[Group],
    *,
    objective: ObjectiveName,
    beta: float | None = None,
    label_smoothing: float | None = None,
) -> tuple[Tensor, ...]:
    """Derivative of the loss of a batch with respect to every completion token's log-prob, in closed form (derived).

    ``d L / d logp_t`` is that of :func:`reference_impl.objectives.group_token_coefficients` for the sigmoid loss,
    ``-1 / T`` for the token mean over T supervised tokens, ``-1 / (C T_y)`` for the mean over C examples; 0 on tokens
    that are not supervised.

    Args:
        margins: Those of :func:`apply_objective`, [pairs]; empty for SFT, where they give dtype and device only.
        groups: The groups.
        objective: Name of the objective.
        beta: As in :func:`objective_named`.
        label_smoothing: As in :func:`objective_named`.

    Returns:
        One 1-D tensor per completion, one value per completion token.

    Raises:
        ValueError: What :func:`objective_named` and :func:`check_groups` refuse, or another number of margins.
    """
    chosen_objective = objective_named(objective, beta, label_smoothing)
    sizes = check_groups(groups, chosen_objective)
    num_pairs = sum(len(group.positives) * len(group.negatives) for group in groups)
    if margins.shape != (num_pairs,):
        raise ValueError(
            f"margins of shape {tuple(margins.shape)}: the groups have {num_pairs} pairs, so ({num_pairs},)"
        )
    sequences = unpack(groups)
    if isinstance(chosen_objective, Sigmoid):
        per_completion = _completion_coefficients(margins, groups, chosen_objective)
    elif chosen_objective.mean_over == "tokens":
        per_completion = margins.new_full((sizes.completions,), -1 / sizes.supervised_tokens)
    else:
        lengths = margins.new_tensor([len(sequence.supervised) for sequence in sequences])
        per_completion = -1 / (sizes.completions * lengths)
    coefficients = []
    for sequence, coefficient in zip(sequences, per_completion, strict=True):
        of_tokens = margins.new_zeros(len(sequence.completion_ids))
        of_tokens[list(sequence.supervised)] = coefficient
        coefficients.append(of_tokens)
    return tuple(coefficients)


def _by_group(values: Sequence[Tensor], groups: Sequence[Group]) -> Iterator[list[Tensor]]:
    """Split values that are listed completion by completion into those of each group."""
    remaining = iter(values)
    for group in groups:
        yield list(islice(remaining, len(group.positives) + len(group.negatives)))


def _supervised(logps: Sequence[Tensor], group: Group) -> list[Tensor]:
    """The log-probs that count. Picked, not multiplied with a mask, so that no other value can matter, not even NaN."""
    return [of[list(sequence.supervised)] for of, sequence in zip(logps, unpack([group]), strict=True)]


def _completion_coefficients(margins: Tensor, groups: Sequence[Group], objective: Sigmoid) -> Tensor:
    """The coefficient of a supervised token of each completion, [completions]."""
    shapes = [(len(group.positives), len(group.negatives)) for group in groups]
    of_groups = torch.split(margins, [num_positives * num_negatives for num_positives, num_negatives in shapes])
    coefficients: list[Tensor] = []
    for margins_X, shape in zip(of_groups, shapes, strict=True):
        coefficients += group_token_coefficients(
            margins_X.view(shape), len(groups), objective.beta, objective.label_smoothing
        )
    return torch.cat(coefficients)


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

"""One step of the oracle for a reward model: rewards, margins, loss and gradients, in float64.

Legend: D model width, P positives and N negatives of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from reference_impl.config import DecoderConfig
from reference_impl.decoder import hidden_states
from reference_impl.gradients import Gradients, Policy, Train, added, gradients_of, leaf, policy_of
from reference_impl.groups import Group, UnpackedSequence, unpack
from reference_impl.lora import Lora
from reference_impl.objectives import group_margins, mean_loss
from reference_impl.pair_losses import mean_over_pairs
from reference_impl.parameters import HEAD, Weights

SCORE = "score.weight"


@dataclass(frozen=True, slots=True)
class RewardStep:
    """What one step of a reward model ought to compute. All tensors are float64 and detached.

    Args:
        rewards: One per completion, group by group, positives before negatives, [completions].
        margins: Reward of a positive less that of a negative: group by group, positive by positive, [pairs].
        loss: Mean over groups of each one's mean over pairs, a scalar.
        gradients: Gradient of the loss by factor, ``<module>.lora_A`` and ``.lora_B``, or by weight, where every
            weight is trained; and that of the head as ``score.weight``, shaped as it was given. None if not asked for.
    """

    rewards: Tensor
    margins: Tensor
    loss: Tensor
    gradients: Gradients | None


def oracle_reward_step(
    groups: Sequence[Group],
    weights: Weights,
    config: DecoderConfig,
    lora: Lora,
    head: Tensor,
    *,
    train: Train = "lora",
    gradients: bool = True,
) -> RewardStep:
    """``-log sigma(r(p) - r(n))``, averaged over the pairs of a group and then over groups.

    ``r = head . h`` where h is the hidden state, after the final norm, of the last token of a completion, whether that
    token is supervised or not. There is no frozen policy, no beta and no log-prob.

    Status: published, Bradley and Terry 1952; as the loss of a reward model, with the mean over the pairs of a prompt,
    Ouyang et al. 2022, equation 1, where the pairs are those of a ranking instead of all positives with all negatives.

    Each group is differentiated on its own, with the memory of :func:`reference_impl.step.oracle_step`.

    Args:
        groups: The groups; at least one positive and one negative each.
        weights: Weights by Hugging Face name, of any floating dtype. A head over the vocabulary may be missing, and is
            not read.
        config: The decoder.
        lora: The adapters by module name; empty for a head that is trained alone, and where every weight is trained.
        head: Weight of the head, [1, D] or [D], of any floating dtype; trained in full.
        train: What is trained beside the head.
        gradients: Whether to differentiate.

    Returns:
        The step.

    Raises:
        ValueError: No groups, a group without positives or without negatives, a head of another shape or not finite,
            an adapter on the head over the vocabulary, or an argument that the decoder refuses.
    """
    _check_sides(groups)
    _check_head(head, config)
    if HEAD in lora:
        raise ValueError(f"LoRA on {HEAD}: a reward model has no head over the vocabulary, only {SCORE}")
    body = {name: weight for name, weight in weights.items() if name != f"{HEAD}.weight"}
    # A decoder whose head is tied is one that has no weight of a head.
    headless = replace(config, tied=True)
    policy, trained_head = policy_of(body, lora, train, requires_grad=gradients), leaf(head, requires_grad=gradients)
    return reduce(
        _joined,
        (_group_step(group, policy, headless, trained_head, len(groups), gradients) for group in groups),
    )


def bradley_terry(rewards: Tensor, groups: Sequence[Group]) -> Tensor:
    """The loss of given rewards, as :func:`oracle_reward_step` defines it.

    Args:
        rewards: One per completion, group by group, positives before negatives, [completions].
        groups: The groups; at least one positive and one negative each.

    Returns:
        The loss, a scalar; differentiable in the rewards.

    Raises:
        ValueError: No groups, a group without positives or without negatives, or another number of rewards.
    """
    _check_sides(groups)
    sizes = [len(side) for group in groups for side in (group.positives, group.negatives)]
    if rewards.shape != (sum(sizes),):
        raise ValueError(f"rewards of shape {tuple(rewards.shape)}: expected ({sum(sizes)},), one for each completion")
    parts = torch.split(rewards, sizes)
    losses = [group_loss(group_margins(p, n)) for p, n in zip(parts[::2], parts[1::2], strict=True)]
    return mean_loss(torch.stack(losses), len(groups))


def group_loss(margins_PN: Tensor) -> Tensor:
    """Loss of one group: the mean over its pairs of ``-log sigma(margin)``."""
    return mean_over_pairs(-logsigmoid(margins_PN))


def completion_reward(
    sequence: UnpackedSequence, weights: Weights, config: DecoderConfig, lora: Lora, head: Tensor
) -> Tensor:
    """The reward of one completion, read at its last token.

    For ``x0 x1 y0 y1 y2`` that is place 4, one past the last predictor: the whole sequence is fed. The classifiers of
    transformers look for the last token that is not the padding token, which is another one where a completion ends in
    that token.

    Args:
        sequence: A prompt and one completion.
        weights: Frozen weights by name, without a head unless the decoder has one of its own.
        config: The decoder.
        lora: Adapters by module name.
        head: Weight of the head, float64, [1, D] or [D].

    Returns:
        The reward, float64, a scalar; differentiable in the adapters' factors and the head.
    """
    last_D = hidden_states(sequence.ids, weights, config, lora)[-1]
    return head.flatten().to(last_D.device) @ last_D


def _group_step(
    group: Group,
    policy: Policy,
    config: DecoderConfig,
    head: Tensor,
    num_groups: int,
    gradients: bool,
) -> RewardStep:
    """The share of one group in the step of a batch of so many groups."""
    # Set rather than left alone, so that a caller's no_grad cannot turn a gradient off.
    with torch.set_grad_enabled(gradients):
        rewards = torch.stack(
            [completion_reward(each, policy.weights, config, policy.lora, head) for each in unpack([group])]
        )
        margins_PN = group_margins(rewards[: len(group.positives)], rewards[len(group.positives) :])
        loss = mean_loss(group_loss(margins_PN), num_groups)
    return RewardStep(
        rewards=rewards.detach(),
        margins=margins_PN.detach().flatten(),
        loss=loss.detach(),
        gradients=gradients_of(loss, {**policy.trained, SCORE: head}) if gradients else None,
    )


def _joined(first: RewardStep, second: RewardStep) -> RewardStep:
    """The step of two parts of a batch, whose losses already count against the whole batch."""
    return RewardStep(
        rewards=torch.cat((first.rewards, second.rewards)),
        margins=torch.cat((first.margins, second.margins)),
        loss=first.loss + second.loss,
        gradients=added(first.gradients, second.gradients),
    )


def _check_sides(groups: Sequence[Group]) -> None:
    unpack(groups)
    for index, group in enumerate(groups):
        if not (group.positives and group.negatives):
            raise ValueError(
                f"group {index} has {len(group.positives)} positives and {len(group.negatives)} negatives: a reward "
                "model compares them, so it needs at least one of each"
            )


def _check_head(head: Tensor, config: DecoderConfig) -> None:
    width = config.hidden_size
    if head.shape not in ((1, width), (width,)) or not head.is_floating_point():
        raise ValueError(
            f"{SCORE} of shape {tuple(head.shape)} and dtype {head.dtype}: expected floating-point values in the shape "
            f"(1, {width}) or ({width},)"
        )
    if not head.isfinite().all():
        raise ValueError(f"{SCORE} has {int((~head.isfinite()).sum())} values that are not finite")

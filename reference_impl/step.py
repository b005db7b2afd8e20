"""One step of the oracle: log-probs, loss, rewards, margins and gradients of what is trained, in float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from reference_impl.batch_objective import (
    BatchSizes,
    Objective,
    ObjectiveName,
    check_groups,
    group_share,
    objective_named,
)
from reference_impl.config import DecoderConfig
from reference_impl.gradients import Gradients, Policy, Train, added, gradients_of, policy_of
from reference_impl.groups import Group, unpack
from reference_impl.logps import completion_logps
from reference_impl.lora import Lora, check_lora
from reference_impl.parameters import Weights, check_weights
from reference_impl.preference import Preference
from reference_impl.ref_policy import (
    AdaptersOff,
    FrozenAdapter,
    PerTokenLogps,
    RefPolicy,
    check_ref_policy,
    ref_logps_by_group,
)


@dataclass(frozen=True, slots=True)
class OracleStep:
    """What one step ought to compute. All tensors are float64 and detached.

    Args:
        per_token_logps: Log-probs of every completion token under the policy, unsupervised ones included: one 1-D
            tensor per completion, group by group, positives before negatives.
        ref_per_token_logps: The same under the frozen policy; ``()`` for SFT.
        loss: Mean as the objective defines it, a scalar.
        rewards: One per completion, [completions]; empty for SFT.
        margins: One per positive and negative of a group: group by group, positive by positive, [pairs]; empty for
            SFT.
        gradients: Gradient of the loss by factor, ``<module>.lora_A`` and ``.lora_B``, or by weight, where every
            weight is trained; None if not asked for.
    """

    per_token_logps: PerTokenLogps
    ref_per_token_logps: PerTokenLogps
    loss: Tensor
    rewards: Tensor
    margins: Tensor
    gradients: Gradients | None


def oracle_step(
    groups: Sequence[Group],
    weights: Weights,
    config: DecoderConfig,
    lora: Lora,
    *,
    train: Train = "lora",
    objective: ObjectiveName = "sigmoid",
    beta: float | None = None,
    label_smoothing: float | None = None,
    nll_weight: float | None = None,
    ref_policy: RefPolicy | None = None,
    gradients: bool = True,
) -> OracleStep:
    """Compute a training step from the definition, one unpadded sequence at a time.

    The loss is a sum over groups, so each group is differentiated on its own and its graph freed before the next.
    Memory is that of the weights as given, of one group's activations and of the largest weight in float64.
    Weights given in float64 are never cast: about a quarter faster than float32 ones, for twice their memory. Where
    every weight is trained, memory is three times that of all weights in float64: copies, gradients of one group, sums.

    Args:
        groups: The groups; at least one positive and one negative each, positives only for SFT.
        weights: Weights by Hugging Face name, of any floating dtype.
        config: The decoder.
        lora: The adapters of the policy by module name; empty where every weight is trained.
        train: What is trained.
        objective: One of :data:`reference_impl.batch_objective.OBJECTIVE_NAMES`.
        beta: Strength of the pull towards the frozen policy; SFT has none and ignores it.
        label_smoothing: Assumed share of swapped labels, for the objectives that have it
            (:data:`reference_impl.preference.SMOOTHED`); SFT ignores it.
        nll_weight: Weight of the likelihood of positives; None for 1 under RPO and GroupDPO, else 0; SFT ignores it.
        ref_policy: The frozen policy; None for the policy's model without its adapters, which is none where every
            weight is trained. SFT has none.
        gradients: Whether to differentiate; without it one forward pass per policy and completion is all.

    Returns:
        The step.

    Raises:
        ValueError: No groups, groups without meaning for the objective, gradients asked for without adapters, a
            frozen policy for SFT or one that does not fit, or an argument that the decoder or the objective refuses.
    """
    chosen_objective = objective_named(objective, beta, label_smoothing, nll_weight)
    sizes = check_groups(groups, chosen_objective)
    if gradients and train == "lora" and not lora:
        raise ValueError("gradients without LoRA factors: there is nothing to differentiate with respect to")

    check_lora(lora, config)
    check_weights(weights, config)
    policy = policy_of(weights, lora, train, requires_grad=gradients)
    ref_logps = _ref_logps(chosen_objective, ref_policy, groups, policy, config, train)
    shares = (
        _group_step(group, of_group, policy, config, chosen_objective, sizes, gradients)
        for group, of_group in zip(groups, ref_logps, strict=True)
    )
    return reduce(_joined, shares)


def _ref_logps(
    objective: Objective,
    ref_policy: RefPolicy | None,
    groups: Sequence[Group],
    policy: Policy,
    config: DecoderConfig,
    train: Train,
) -> Iterable[PerTokenLogps]:
    """The frozen policy's log-probs, group by group; nothing for any group under an objective without such a policy."""
    if isinstance(objective, Preference):
        chosen = AdaptersOff() if ref_policy is None else ref_policy
        if train == "all" and isinstance(chosen, AdaptersOff | FrozenAdapter):
            raise ValueError(
                f"the reference policy {chosen.name!r} where every weight is trained: it would be trained as well; "
                "give a separate model or cached log-probs"
            )
        check_ref_policy(chosen, groups, config)
        return ref_logps_by_group(chosen, groups, policy.weights, config)
    if ref_policy is not None:
        raise ValueError(f"SFT with the reference policy {ref_policy.name!r}: it has none, leave it out")
    return [()] * len(groups)


def _group_step(
    group: Group,
    ref_logps: PerTokenLogps,
    policy: Policy,
    config: DecoderConfig,
    objective: Objective,
    sizes: BatchSizes,
    gradients: bool,
) -> OracleStep:
    """The share of one group in the step of a batch of these sizes."""
    sequences = unpack([group])
    # Set rather than left alone, so that a caller's no_grad cannot turn a gradient off.
    with torch.set_grad_enabled(gradients):
        logps = tuple(completion_logps(sequence, policy.weights, config, policy.lora) for sequence in sequences)
        values = group_share(logps, ref_logps, group, objective, sizes)
    return OracleStep(
        per_token_logps=tuple(each.detach() for each in logps),
        ref_per_token_logps=ref_logps,
        loss=values.loss.detach(),
        rewards=values.rewards.detach(),
        margins=values.margins.detach(),
        gradients=gradients_of(values.loss, policy.trained) if gradients else None,
    )


def _joined(first: OracleStep, second: OracleStep) -> OracleStep:
    """The step of two parts of a batch, whose losses already count against the whole batch."""
    return OracleStep(
        per_token_logps=first.per_token_logps + second.per_token_logps,
        ref_per_token_logps=first.ref_per_token_logps + second.ref_per_token_logps,
        loss=first.loss + second.loss,
        rewards=torch.cat((first.rewards, second.rewards)),
        margins=torch.cat((first.margins, second.margins)),
        gradients=added(first.gradients, second.gradients),
    )

"""One DPO step of the oracle: log-probs, loss, rewards, margins and LoRA gradients, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reference_impl.config import DecoderConfig
from reference_impl.groups import Group, UnpackedSequence, unpack
from reference_impl.logps import completion_logps
from reference_impl.lora import Lora
from reference_impl.objectives import (
    check_beta,
    check_label_smoothing,
    margins,
    mean_loss,
    rewards,
    sequence_logps,
    sigmoid_losses,
)
from reference_impl.parameters import Weights

PerTokenLogps = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class OracleStep:
    """What one step ought to compute. All tensors are float64 and detached.

    Args:
        per_token_logps: Log-probs under the policy, one 1-D tensor per completion, chosen before rejected.
        ref_per_token_logps: The same under the frozen policy, that is without the adapters.
        loss: Mean over the pairs, a scalar.
        rewards: One per completion, [completions].
        margins: One per pair, [pairs].
        gradients: Gradient of the loss by factor, ``<module>.lora_A`` and ``.lora_B``; None if not asked for.
    """

    per_token_logps: PerTokenLogps
    ref_per_token_logps: PerTokenLogps
    loss: Tensor
    rewards: Tensor
    margins: Tensor
    gradients: Mapping[str, Tensor] | None


@dataclass(frozen=True, slots=True)
class _PairStep:
    """The part of the step that one pair contributes, with its graph."""

    per_token_logps: PerTokenLogps
    ref_per_token_logps: PerTokenLogps
    loss: Tensor
    rewards: Tensor
    margins: Tensor


def oracle_step(
    groups: Sequence[Group],
    weights: Weights,
    config: DecoderConfig,
    lora: Lora,
    *,
    beta: float,
    label_smoothing: float,
    gradients: bool = True,
) -> OracleStep:
    """Compute a DPO step from the definition, one unpadded sequence at a time.

    The loss is a mean over pairs, so each pair is differentiated on its own and its graph freed before the next.
    Memory is that of the weights as given, of two sequences' activations and of the largest weight in float64.

    Args:
        groups: Preference groups with exactly one positive and one negative each.
        weights: Frozen weights by Hugging Face name, of any floating dtype; they get no gradient.
        config: The decoder.
        lora: The adapters of the policy by module name; the frozen policy is the same model without them.
        beta: Strength of the pull towards the frozen policy.
        label_smoothing: Assumed share of swapped labels.
        gradients: Whether to differentiate; without it one forward pass per policy and completion is all.

    Returns:
        The step.

    Raises:
        ValueError: No groups, a group that is not a pair, gradients asked for without adapters, or an argument
            that the decoder or the objective refuses.
    """
    check_beta(beta)
    check_label_smoothing(label_smoothing)
    pairs = _pairs(groups)
    if gradients and not lora:
        raise ValueError("gradients without LoRA factors: there is nothing to differentiate with respect to")

    policy = _leaves(lora, requires_grad=gradients)
    factors = _factors(policy)
    totals = {name: torch.zeros_like(factor) for name, factor in factors.items()}
    steps: list[_PairStep] = []
    for pair in pairs:
        step = _pair_step(pair, len(pairs), weights, config, policy, beta, label_smoothing, gradients)
        if gradients:
            parts = torch.autograd.grad(step.loss, list(factors.values()))
            totals = {name: total + part for (name, total), part in zip(totals.items(), parts, strict=True)}
        steps.append(_detached(step))

    return OracleStep(
        per_token_logps=tuple(logps for step in steps for logps in step.per_token_logps),
        ref_per_token_logps=tuple(logps for step in steps for logps in step.ref_per_token_logps),
        loss=torch.stack([step.loss for step in steps]).sum(),
        rewards=torch.cat([step.rewards for step in steps]),
        margins=torch.cat([step.margins for step in steps]),
        gradients=totals if gradients else None,
    )


def _pair_step(
    pair: Sequence[UnpackedSequence],
    num_pairs: int,
    weights: Weights,
    config: DecoderConfig,
    policy: Lora,
    beta: float,
    label_smoothing: float,
    gradients: bool,
) -> _PairStep:
    with torch.no_grad():
        ref_logps = tuple(completion_logps(sequence, weights, config) for sequence in pair)
    with torch.set_grad_enabled(gradients):
        logps = tuple(completion_logps(sequence, weights, config, policy) for sequence in pair)
        pair_rewards = rewards(sequence_logps(logps), sequence_logps(ref_logps), beta)
        pair_margins = margins(pair_rewards[:1], pair_rewards[1:])
        loss = mean_loss(sigmoid_losses(pair_margins, label_smoothing), num_pairs)
    return _PairStep(logps, ref_logps, loss, pair_rewards, pair_margins)


def _detached(step: _PairStep) -> _PairStep:
    return replace(
        step,
        per_token_logps=tuple(logps.detach() for logps in step.per_token_logps),
        loss=step.loss.detach(),
        rewards=step.rewards.detach(),
        margins=step.margins.detach(),
    )


def _pairs(groups: Sequence[Group]) -> list[list[UnpackedSequence]]:
    for index, group in enumerate(groups):
        if len(group.positives) != 1 or len(group.negatives) != 1:
            raise ValueError(
                f"group {index} has {len(group.positives)} positives and {len(group.negatives)} negatives: "
                "DPO needs exactly one of each"
            )
    sequences = unpack(groups)
    return [sequences[start : start + 2] for start in range(0, len(sequences), 2)]


def _leaves(lora: Lora, *, requires_grad: bool) -> Lora:
    """Float64 copies of the factors that a gradient can be taken with respect to."""
    return {
        module: replace(
            factors,
            A=factors.A.detach().to(torch.float64, copy=True).requires_grad_(requires_grad),
            B=factors.B.detach().to(torch.float64, copy=True).requires_grad_(requires_grad),
        )
        for module, factors in lora.items()
    }


def _factors(lora: Lora) -> dict[str, Tensor]:
    named = ((f"{module}.lora_{side}", getattr(factors, side)) for module, factors in lora.items() for side in "AB")
    return dict(named)

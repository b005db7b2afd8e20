"""The float64 oracle as an observation: weights and adapters are read off the model under test."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from reference_impl.config import from_hf_config
from reference_impl.lora import LoraFactors
from reference_impl.objectives import check_beta, mean_loss, sequence_logps, sigmoid_losses
from reference_impl.objectives import margins as margins_of
from reference_impl.objectives import rewards as rewards_of
from reference_impl.step import oracle_step
from verify.groups import PreferenceGroup
from verify.objective import DpoSigmoid
from verify.observation import ObjectiveValues, Observation, to_float64

_PEFT_PREFIX = "base_model.model."


def observe_oracle(model: Any, groups: Sequence[PreferenceGroup], objective: DpoSigmoid) -> Observation:
    """What the model's weights and adapters mean, in float64.

    Args:
        model: The PEFT-wrapped model; only its tensors and its config are used, none of its code.
        groups: 1+1 groups.
        objective: beta and label smoothing.

    Returns:
        The expected observation.

    Raises:
        ValueError: A model that the oracle does not know, or groups that are not pairs.
    """
    start = time.perf_counter()
    weights, lora = read_tensors(model)
    step = oracle_step(
        groups,
        weights,
        from_hf_config(model.config.to_dict()),
        lora,
        beta=objective.beta,
        label_smoothing=objective.label_smoothing,
    )
    return Observation(
        per_token_logps=tuple(map(to_float64, step.per_token_logps)),
        ref_per_token_logps=tuple(map(to_float64, step.ref_per_token_logps)),
        rewards=to_float64(step.rewards),
        margins=to_float64(step.margins),
        loss=to_float64(step.loss),
        gradients={name: to_float64(gradient) for name, gradient in (step.gradients or {}).items()},
        elapsed_s=time.perf_counter() - start,
    )


def check_known_to_oracle(config: Any) -> None:
    """Refuse a model that the oracle has no decoder for.

    Args:
        config: The transformers config.

    Raises:
        ValueError: With what the oracle knows.
    """
    from_hf_config(config.to_dict())


def read_tensors(model: Any) -> tuple[dict[str, Tensor], dict[str, LoraFactors]]:
    """Weights under their names before wrapping, and LoRA factors by module.

    Args:
        model: The PEFT-wrapped model.

    Returns:
        Base weights without duplicates (a tied head appears once), and the factors of adapter "default".
    """
    weights: dict[str, Tensor] = {}
    factors: dict[str, dict[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        plain = name.removeprefix(_PEFT_PREFIX)
        if ".lora_" in plain:
            module, factor = plain.removesuffix(".default.weight").rsplit(".", 1)
            factors.setdefault(module, {})[factor] = parameter.detach()
        else:
            weights[plain.replace(".base_layer.", ".")] = parameter.detach()
    scalings = _scalings(model)
    lora = {
        module: LoraFactors(A=parts["lora_A"], B=parts["lora_B"], scaling=scalings[module])
        for module, parts in factors.items()
    }
    return weights, lora


def _scalings(model: Any) -> Mapping[str, float]:
    return {
        name.removeprefix(_PEFT_PREFIX): float(module.scaling["default"])
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and "default" in module.lora_A
    }


def apply_dpo(
    logps: Sequence[Tensor], refs: Sequence[Tensor], groups: Sequence[PreferenceGroup], objective: DpoSigmoid
) -> ObjectiveValues:
    """The published objective on a subject's log-probs, in float64.

    Args:
        logps: Policy log-probs, one vector per completion.
        refs: Reference log-probs.
        groups: 1+1 groups.
        objective: beta and label smoothing.

    Returns:
        Mean loss over the groups (differentiable through ``logps``) and rewards.

    Raises:
        ValueError: A group that is not one positive and one negative.
    """
    for index, group in enumerate(groups):
        if len(group.positives) != 1 or len(group.negatives) != 1:
            raise ValueError(
                f"group {index} has {len(group.positives)} positives and {len(group.negatives)} negatives; "
                "DPO compares one of each"
            )
    check_beta(objective.beta)
    rewards = rewards_of(
        sequence_logps([logp.double() for logp in logps]),
        sequence_logps([ref.detach().double() for ref in refs]),
        objective.beta,
    )
    losses = sigmoid_losses(margins_of(rewards[0::2], rewards[1::2]), objective.label_smoothing)
    return ObjectiveValues(loss=mean_loss(losses, len(groups)), rewards=rewards)

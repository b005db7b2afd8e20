"""Models with seeded random weights on a named config."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.initialization import no_init_weights

from verify.models.configs import ModelType, NamedConfig
from verify.models.lora import rounded_normal

_NORM_SPREAD = 0.1
_MOVED_BY = 0.1
_CONFIG_CLASSES: Mapping[ModelType, type[PreTrainedConfig]] = {
    "qwen3": Qwen3Config,
    "qwen2": Qwen2Config,
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen3_moe": Qwen3MoeConfig,
}
_SMALL_EXPERTS = 2**17
"""Weights of the experts of one token, up to which copying them for each token costs next to nothing."""


def hf_config(config: NamedConfig, num_layers: int) -> PreTrainedConfig:
    """The transformers config, with the depth that was asked for."""
    return _CONFIG_CLASSES[config.model_type](
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        tie_word_embeddings=config.tie_word_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        # Enters no computation of these rope types.
        max_position_embeddings=40960 if config.rope_scaling is None else 131072,
        rope_parameters=_rope_parameters(config),
        **_family_fields(config),
    )


def _rope_parameters(config: NamedConfig) -> dict[str, Any]:
    if config.rope_scaling is None:
        return {"rope_type": "default", "rope_theta": config.rope_theta}
    return {"rope_type": "llama3", "rope_theta": config.rope_theta, **asdict(config.rope_scaling)}


def _family_fields(config: NamedConfig) -> dict[str, Any]:
    """The fields that the config class of the family has and others lack."""
    if config.model_type == "llama":
        return {"attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias}
    if config.model_type == "mistral":
        return {"sliding_window": config.sliding_window}
    if config.model_type == "qwen2":
        return {"use_sliding_window": False}
    fields = {"attention_bias": config.attention_bias, "use_sliding_window": False}
    if config.experts is None:
        return fields
    experts = asdict(config.experts)
    return fields | experts | {"mlp_only_layers": list(config.experts.mlp_only_layers)}


def implementations(config: PreTrainedConfig) -> dict[str, str]:
    """How attention and experts are computed; transformers' default for experts, a grouped product, knows no float64.

    Small experts are copied for each token and multiplied one token at a time: an output's bits then depend on its
    token alone, as exact checks need it. Large ones are looped over, and how many tokens share an expert, which other
    branches decide, may change how each of them is rounded.
    """
    of_a_token = getattr(config, "num_experts_per_tok", 0) * getattr(config, "moe_intermediate_size", 0)
    small = 3 * getattr(config, "hidden_size", 0) * of_a_token <= _SMALL_EXPERTS
    return {"attn_implementation": "sdpa", "experts_implementation": "batched_mm" if small else "eager"}


def build_random(config: NamedConfig, *, num_layers: int, dtype: torch.dtype, seed: int) -> Any:
    """Build a causal LM with seeded weights that bfloat16 represents exactly.

    Every dtype then runs the very same weights, and one float64 oracle serves them all. Norm weights are drawn
    around 1, since a norm of all ones would hide one that is left out, and biases around 0 as all other weights are.

    Args:
        config: The named config.
        num_layers: Depth to build.
        dtype: float64, float32 or bfloat16.
        seed: Seed of the weights.

    Returns:
        The model on the CPU, in eval mode, nothing requiring grad.
    """
    published = hf_config(config, num_layers)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(published, dtype=dtype, **implementations(published))
    model.tie_weights()  # part of the initialisation that was left out
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith("norm.weight"):
                values = 1 + rounded_normal(parameter.shape, _NORM_SPREAD, generator)
                values = values.to(torch.bfloat16).to(torch.float32)
            else:
                values = rounded_normal(parameter.shape, config.weight_std, generator)
            parameter.copy_(values)
    return freeze(model)


def moved_copy(model: nn.Module, *, seed: int) -> nn.Module:
    """Another model of the same kind: every matrix moved by a tenth of its size, rounded to bfloat16.

    Args:
        model: A causal LM without adapters; left as it is.
        seed: Seed of what is added.

    Returns:
        The copy, in eval mode, nothing requiring grad.
    """
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(moved.named_parameters()):
            if parameter.dim() > 1:
                step = _MOVED_BY * float(parameter.float().square().mean().sqrt())
                values = parameter.float() + rounded_normal(parameter.shape, step, generator).to(parameter.device)
                parameter.copy_(values.to(torch.bfloat16))
    return freeze(moved)


def freeze(model: nn.Module) -> nn.Module:
    """Eval mode, and no parameter requires grad."""
    return model.eval().requires_grad_(False)

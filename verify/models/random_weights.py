"""Models with seeded random weights on a named config."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, Qwen3Config
from transformers.initialization import no_init_weights

from verify.models.configs import NamedConfig
from verify.models.lora import rounded_normal

_NORM_SPREAD = 0.1


def hf_config(config: NamedConfig, num_layers: int) -> Qwen3Config:
    """The transformers config, with the depth that was asked for."""
    return Qwen3Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        tie_word_embeddings=config.tie_word_embeddings,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        attention_bias=False,
        use_sliding_window=False,
    )


def build_random(config: NamedConfig, *, num_layers: int, dtype: torch.dtype, seed: int) -> Any:
    """Build a Qwen3 causal LM with seeded weights that bfloat16 represents exactly.

    Every dtype then runs the very same weights, and one float64 oracle serves them all. Norm weights are drawn
    around 1, since a norm of all ones would hide one that is left out.

    Args:
        config: The named config.
        num_layers: Depth to build.
        dtype: float64, float32 or bfloat16.
        seed: Seed of the weights.

    Returns:
        The model on the CPU, in eval mode, nothing requiring grad.
    """
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(hf_config(config, num_layers), dtype=dtype, attn_implementation="sdpa")
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


def freeze(model: nn.Module) -> nn.Module:
    """Eval mode, and no parameter requires grad."""
    return model.eval().requires_grad_(False)

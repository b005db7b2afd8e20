"""Published configs by name: parameter counts by arithmetic and from the built module, without allocating a weight."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from transformers import AutoModelForCausalLM

from verify.models.configs import NAMED_CONFIGS, TINY_CONFIGS, ModelType, NamedConfig, named_config
from verify.models.random_weights import hf_config

PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "llama-3.2-1b": 1_235_814_400,
}


def count_by_hand(c: NamedConfig) -> int:
    """Embedding, head unless tied, last norm; per layer q, k, v, o, biases or norms, MLP or experts, two norms."""
    embedding = c.vocab_size * c.hidden_size
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    attention = c.hidden_size * (q + 2 * kv) + q * c.hidden_size
    attention += {"qwen3": 2 * c.head_dim, "qwen3_moe": 2 * c.head_dim, "qwen2": q + 2 * kv}.get(c.model_type, 0)
    mlp = 3 * c.hidden_size * c.intermediate_size
    if c.experts is not None:
        mlp = c.experts.num_experts * (3 * c.hidden_size * c.experts.moe_intermediate_size + c.hidden_size)
    layers = c.num_hidden_layers * (attention + mlp + 2 * c.hidden_size)
    return embedding * (1 if c.tie_word_embeddings else 2) + layers + c.hidden_size


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_parameter_count_follows_from_the_config(name: str) -> None:
    config = named_config(name)
    assert count_by_hand(config) == config.num_parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", [*TINY_CONFIGS, *PUBLISHED])
def test_the_module_that_transformers_builds_has_as_many_parameters(name: str) -> None:
    config = named_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf_config(config, 1), dtype=torch.bfloat16)
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    rest = sum(p.numel() for p in model.parameters()) - layer
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert rest + layer * config.num_hidden_layers == count_by_hand(config)


def test_every_config_is_there() -> None:
    assert set(NAMED_CONFIGS) == {*TINY_CONFIGS, "small", *PUBLISHED}
    assert {config.model_type for config in TINY_CONFIGS.values()} == set(get_args(ModelType))


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_the_tiny_configs_are_ones_on_which_a_common_shortcut_is_wrong(name: str) -> None:
    """Hidden size divided by heads is not the head dimension, and keys are shared by several heads."""
    tiny = named_config(name)
    assert tiny.hidden_size // tiny.num_attention_heads != tiny.head_dim
    assert tiny.num_key_value_heads < tiny.num_attention_heads
    assert count_by_hand(tiny) < 300_000


def test_the_rotary_scaling_of_the_tiny_llama_bites_in_the_default_cases() -> None:
    """Planes of all three kinds, and sequences beyond the original length: those of length-129 have 258 tokens."""
    config = named_config("tiny-llama")
    scaling = config.rope_scaling
    assert scaling is not None
    turns = [
        scaling.original_max_position_embeddings * config.rope_theta ** (-2 * i / config.head_dim) / (2 * math.pi)
        for i in range(config.head_dim // 2)
    ]
    kept = sum(each > scaling.high_freq_factor for each in turns)
    slowed = sum(each < scaling.low_freq_factor for each in turns)
    assert (kept, len(turns) - kept - slowed, slowed) == (3, 3, 10)
    assert scaling.original_max_position_embeddings == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 8}, "sliding_window in a config of model_type qwen3: only mistral has it"),
        ({"mlp_bias": True}, "mlp_bias in a config of model_type qwen3: only llama has it"),
        ({"model_type": "qwen2", "attention_bias": True}, "attention_bias in .* qwen2: only qwen3, llama, qwen3_moe"),
        (
            {"experts": named_config("tiny-qwen3-moe").experts},
            "experts in a config of model_type qwen3: only qwen3_moe",
        ),
        ({"model_type": "qwen3_moe"}, "model_type qwen3_moe without experts"),
    ],
)
def test_an_option_that_the_family_lacks_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(named_config("tiny"), **changes)


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "QWEN3-0.6B"])
def test_a_name_is_found_in_any_case(name: str) -> None:
    assert named_config(name) is NAMED_CONFIGS["qwen3-0.6b"]


def test_an_unknown_name_lists_the_valid_ones_and_the_nearest() -> None:
    listed = (
        r"give one of tiny, tiny-qwen2, .*qwen3-0\.6b, .*llama-3\.2-1b, the folder of a checkpoint, or a JSON file of"
    )
    with pytest.raises(ValueError, match=rf"unknown model 'qwen3-06b' \(did you mean qwen3-0\.6b\?\): {listed}"):
        named_config("qwen3-06b")
    with pytest.raises(ValueError, match=rf"unknown model 'bert': {listed}"):
        named_config("bert")


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        NAMED_CONFIGS["tiny"] = named_config("qwen3-8b")  # type: ignore[index]

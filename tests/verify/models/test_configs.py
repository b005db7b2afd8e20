"""Published configs by name: parameter counts by arithmetic and from the built module, without allocating a weight."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from verify.models.configs import NAMED_CONFIGS, NamedConfig, named_config
from verify.models.random_weights import hf_config

PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
}


def count_by_hand(c: NamedConfig) -> int:
    """Embedding, head unless tied, last norm; per layer q, k, v, o, their two norms, three MLP matrices, two norms."""
    embedding = c.vocab_size * c.hidden_size
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    attention = c.hidden_size * (q + 2 * kv) + q * c.hidden_size + 2 * c.head_dim
    mlp = 3 * c.hidden_size * c.intermediate_size
    layers = c.num_hidden_layers * (attention + mlp + 2 * c.hidden_size)
    return embedding * (1 if c.tie_word_embeddings else 2) + layers + c.hidden_size


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_parameter_count_follows_from_the_config(name: str) -> None:
    config = named_config(name)
    assert count_by_hand(config) == config.num_parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ["tiny", *PUBLISHED])
def test_the_module_that_transformers_builds_has_as_many_parameters(name: str) -> None:
    config = named_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf_config(config, 1), dtype=torch.bfloat16)
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    rest = sum(p.numel() for p in model.parameters()) - layer
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert rest + layer * config.num_hidden_layers == count_by_hand(config)


def test_every_published_config_is_there() -> None:
    assert set(NAMED_CONFIGS) == {"tiny", *PUBLISHED}


def test_the_tiny_config_is_one_on_which_a_common_shortcut_is_wrong() -> None:
    """Hidden size divided by heads is not the head dimension, and keys are shared by several heads."""
    tiny = named_config("tiny")
    assert tiny.hidden_size // tiny.num_attention_heads != tiny.head_dim
    assert tiny.num_key_value_heads < tiny.num_attention_heads
    assert count_by_hand(tiny) < 300_000


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "QWEN3-0.6B"])
def test_a_name_is_found_in_any_case(name: str) -> None:
    assert named_config(name) is NAMED_CONFIGS["qwen3-0.6b"]


def test_an_unknown_name_lists_the_valid_ones_and_the_nearest() -> None:
    listed = r"give one of tiny, qwen3-0\.6b, .*qwen3-32b, the folder of a checkpoint, or a JSON file of a shape"
    with pytest.raises(ValueError, match=rf"unknown model 'qwen3-06b' \(did you mean qwen3-0\.6b\?\): {listed}"):
        named_config("qwen3-06b")
    with pytest.raises(ValueError, match=rf"unknown model 'bert': {listed}"):
        named_config("bert")


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        NAMED_CONFIGS["tiny"] = named_config("qwen3-8b")  # type: ignore[index]

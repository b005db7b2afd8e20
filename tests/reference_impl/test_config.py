from __future__ import annotations

import dataclasses

import pytest
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from reference_impl.config import from_hf_config

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "attention_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 36,
    "tie_word_embeddings": False,
}


def changed(**changes: object) -> dict[str, object]:
    return {**QWEN3_8B, **changes}


def test_a_config_json_of_the_older_layout_is_read() -> None:
    config = from_hf_config(QWEN3_8B)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (36, 32, 8, 128)
    assert (config.rope_theta, config.qk_norm, config.attention_bias, config.tied) == (1e6, True, False, False)


def test_both_layouts_of_the_rotary_settings_give_one_config() -> None:
    newer = changed(rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    del newer["rope_theta"], newer["rope_scaling"]
    assert from_hf_config(newer) == from_hf_config(QWEN3_8B)


@pytest.mark.parametrize(
    ("hf_config", "switches"),
    [
        (Qwen3Config(), (True, False, False, False)),
        (Qwen3Config(attention_bias=True), (True, True, True, False)),
        (Qwen2Config(), (False, True, False, False)),
        (LlamaConfig(), (False, False, False, False)),
        (LlamaConfig(attention_bias=True, mlp_bias=True), (False, True, True, True)),
    ],
)
def test_each_family_has_its_norms_and_biases(hf_config: object, switches: tuple[bool, ...]) -> None:
    config = from_hf_config(hf_config.to_dict())  # type: ignore[attr-defined]
    assert (config.qk_norm, config.attention_bias, config.attention_output_bias, config.mlp_bias) == switches


def test_head_dim_follows_from_the_sizes_only_where_the_family_says_so() -> None:
    assert (
        from_hf_config(Qwen2Config(hidden_size=896, num_attention_heads=14, num_key_value_heads=2).to_dict()).head_dim
        == 64
    )
    with pytest.raises(ValueError, match="in Qwen3 it does not follow"):
        from_hf_config(changed(head_dim=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' is not known to the oracle: it computes llama, qwen2, qwen3"),
        ({"model_type": None}, "is not known to the oracle"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope type 'llama3'"),
        ({"rope_theta": None}, "no rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 8}, "sliding window of 512 tokens"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_attention"),
        ({"num_key_value_heads": 5}, "32 query heads over 5 key heads"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"rms_norm_eps": None}, "no rms_norm_eps"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
    ],
)
def test_what_the_oracle_does_not_compute_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf_config(changed(**changes))


def test_a_sliding_window_that_no_layer_uses_is_no_obstacle() -> None:
    unused = changed(use_sliding_window=True, sliding_window=512, max_window_layers=36)
    assert from_hf_config(unused) == from_hf_config(QWEN3_8B)
    assert from_hf_config(changed(sliding_window=512)) == from_hf_config(QWEN3_8B)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        from_hf_config(QWEN3_8B).num_layers = 1  # type: ignore[misc]

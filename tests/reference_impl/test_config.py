from __future__ import annotations

import dataclasses

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from reference_impl.attention import SlidingWindow
from reference_impl.config import from_hf_config
from reference_impl.experts import Experts
from reference_impl.rope import Llama3Scaling

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


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA_3_2_1B = {
    **{name: value for name, value in QWEN3_8B.items() if "window" not in name},
    "model_type": "llama",
    "mlp_bias": False,
    "rope_theta": 500000.0,
    "rope_scaling": LLAMA3,
}
MISTRAL_7B = {
    **{name: value for name, value in QWEN3_8B.items() if "window" not in name and "bias" not in name},
    "model_type": "mistral",
    "sliding_window": 4096,
}
QWEN3_30B_A3B = {
    **QWEN3_8B,
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}


WINDOWED = {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 8}
MIXED = ["sliding_attention" if layer in (1, 35) else "full_attention" for layer in range(36)]


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
        (MistralConfig(), (False, False, False, False)),
        (Qwen3MoeConfig(head_dim=128, attention_bias=True), (True, True, True, False)),
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
        (
            {"model_type": "mamba"},
            "'mamba' is not known to the oracle: it computes llama, mistral, qwen2, qwen3, qwen3_",
        ),
        ({"model_type": None}, "is not known to the oracle"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_dropout": 0.1}, r"attention_dropout is 0\.1: .*; it knows only None or 0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50"),
        (
            {"attention_multiplier": 0.5},
            r"attention_multiplier is 0\.5: the oracle does not compute it; it knows only None",
        ),
        ({"residual_multiplier": 0.22}, r"residual_multiplier is 0\.22: .* only None or 1"),
        ({"n_shared_experts": 1}, "n_shared_experts is 1"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"mlp_bias": True}, "mlp_bias is True: in qwen3 it is always False"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear': .* only 'default' and 'llama3'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            "type 'llama3' has no high_freq_factor, low_freq_f",
        ),
        ({"rope_parameters": {"rope_theta": 1e6, "factor": 8.0}}, "rope_parameters of type 'default' has factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "of type 'default' has full_attention"),
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": LLAMA3}, "has rope_scaling and rope_parameters"),
        ({"rope_scaling": {**LLAMA3, "attention_factor": 1.2}}, "rope_scaling of type 'llama3' has attention_factor"),
        (
            {"rope_scaling": {**LLAMA3, "low_freq_factor": 5.0}},
            r"low_freq_factor 5\.0 .* is not below high_freq_factor",
        ),
        ({"rope_parameters": {"rope_theta": 5e5}}, r"rope_theta 500000\.0 and 1000000\.0: give it once"),
        ({"rope_theta": None}, "no rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({**WINDOWED, "max_window_layers": None}, "no max_window_layers: the oracle does not guess it"),
        ({**WINDOWED, "sliding_window": 0}, "sliding_window is 0: it must be positive"),
        ({**WINDOWED, "layer_types": ["sliding_attention"]}, "names 1 layers: num_hidden_layers is 36"),
        ({**WINDOWED, "layer_types": ["chunked_attention"] * 36}, "has chunked_attention: the oracle computes only fu"),
        ({"layer_types": MIXED}, "layer_types has sliding_attention in layers 1, 35, but there is no window"),
        ({**WINDOWED, "sliding_window": None, "layer_types": MIXED}, "in layers 1, 35, but there is no window"),
        ({"num_key_value_heads": 5}, "32 query heads over 5 key heads"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"rms_norm_eps": None}, "no rms_norm_eps"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
    ],
)
def test_what_the_oracle_does_not_compute_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf_config(changed(**changes))


@pytest.mark.parametrize(
    ("hf_config", "changes", "message"),
    [
        (MISTRAL_7B, {"sliding_window": 0}, "sliding_window is 0: it must be positive"),
        (MISTRAL_7B, {"layer_types": ["sliding_attention", "full_attention"]}, "with sliding_window 4096 every layer"),
        (MISTRAL_7B, {"attention_bias": True}, "attention_bias is True: in mistral it is always False"),
        (QWEN3_8B, {"model_type": "qwen2"}, "attention_bias is False: in qwen2 it is always True"),
        (QWEN3_30B_A3B, {"output_router_logits": True}, "the auxiliary loss of the router, which it adds, is not comp"),
        (QWEN3_30B_A3B, {"num_experts": None}, "the config has no number of experts"),
        (QWEN3_30B_A3B, {"num_local_experts": 64}, "the config has 64 and 128 of experts"),
        (QWEN3_30B_A3B, {"num_experts_per_tok": 129}, "129 experts per token: a layer has 128"),
        (QWEN3_30B_A3B, {"norm_topk_prob": None}, "no norm_topk_prob: the oracle does not guess it"),
        (QWEN3_30B_A3B, {"mlp_only_layers": None}, "no mlp_only_layers"),
        (QWEN3_30B_A3B, {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        (QWEN3_30B_A3B, {"head_dim": None}, "no head_dim"),
        (QWEN3_30B_A3B, {**WINDOWED, "layer_types": MIXED}, "has full_attention: with sliding_window 512 every layer"),
        (LLAMA_3_2_1B, {"layer_types": MIXED}, "has sliding_attention: in llama every layer has full attention"),
        (LLAMA_3_2_1B, WINDOWED, "sliding window of 512 tokens: in llama every layer has full attention"),
    ],
)
def test_each_family_refuses_what_it_cannot_have(hf_config, changes, message) -> None:
    from_hf_config(hf_config)
    with pytest.raises(ValueError, match=message):
        from_hf_config({**hf_config, **changes})


def test_llama3_scaling_is_read_from_both_layouts() -> None:
    scaling = Llama3Scaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
    older = from_hf_config(LLAMA_3_2_1B)
    assert (older.rope_theta, older.rope_scaling) == (5e5, scaling)
    newer = {**LLAMA_3_2_1B, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}
    del newer["rope_theta"], newer["rope_scaling"]
    assert from_hf_config(newer) == older
    assert from_hf_config(LlamaConfig(**LLAMA_3_2_1B).to_dict()) == older


def test_the_window_of_mistral_is_that_of_every_layer() -> None:
    expected = SlidingWindow(4096, frozenset(range(36)))
    assert from_hf_config(MISTRAL_7B).sliding_window == expected
    assert from_hf_config(MistralConfig(**MISTRAL_7B).to_dict()).sliding_window == expected
    assert from_hf_config({**MISTRAL_7B, "sliding_window": None}).sliding_window is None


@pytest.mark.parametrize(("config_class", "model_type"), [(Qwen2Config, "qwen2"), (Qwen3Config, "qwen3")])
@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, range(8, 36)),
        ({"max_window_layers": 0}, range(36)),
        ({"max_window_layers": 35}, (35,)),
        ({"layer_types": MIXED}, (1, 35)),
    ],
)
def test_windows_stand_where_transformers_puts_them(config_class, model_type, changes, layers) -> None:
    """Layer types, if there are any, decide; else the number of layers without a window, which come first."""
    fields = {**QWEN3_8B, "model_type": model_type, **WINDOWED, **changes}
    del fields["attention_bias"]
    expected = SlidingWindow(512, frozenset(layers))
    assert from_hf_config(fields).sliding_window == expected
    made = config_class(**fields)
    assert from_hf_config(made.to_dict()).sliding_window == expected
    windowed = [index for index, kind in enumerate(made.layer_types) if kind == "sliding_attention"]
    assert frozenset(windowed) == expected.layers


def test_qwen3_moe_has_its_window_in_every_layer_or_in_none() -> None:
    every_layer = SlidingWindow(512, frozenset(range(36)))
    assert from_hf_config({**QWEN3_30B_A3B, **WINDOWED}).sliding_window == every_layer
    assert from_hf_config(Qwen3MoeConfig(**{**QWEN3_30B_A3B, **WINDOWED}).to_dict()).sliding_window == every_layer
    assert from_hf_config({**QWEN3_30B_A3B, "sliding_window": 512}).sliding_window is None


def test_a_window_knows_its_layers() -> None:
    config = from_hf_config({**QWEN3_8B, **WINDOWED, "layer_types": MIXED})
    assert [config.window_in(layer) for layer in (0, 1, 2, 35)] == [None, 512, None, 512]
    with pytest.raises(ValueError, match=r"a window in layers \[40\]: there are 36"):
        dataclasses.replace(config, sliding_window=SlidingWindow(512, frozenset({40})))
    with pytest.raises(ValueError, match="512 tokens in no layer"):
        SlidingWindow(512, frozenset())


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, range(36)),
        ({"mlp_only_layers": [0, 2, 40]}, (1, *range(3, 36))),
        ({"decoder_sparse_step": 2}, range(1, 36, 2)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [5]}, (2, *range(8, 36, 3))),
    ],
)
def test_experts_stand_where_transformers_puts_them(changes, layers) -> None:
    expected = Experts(count=128, per_token=8, intermediate_size=768, shares_sum_to_one=True, layers=frozenset(layers))
    assert from_hf_config({**QWEN3_30B_A3B, **changes}).experts == expected
    assert from_hf_config(Qwen3MoeConfig(**{**QWEN3_30B_A3B, **changes}).to_dict()).experts == expected
    assert from_hf_config(QWEN3_8B).experts is None


def test_a_sliding_window_that_no_layer_uses_is_no_obstacle() -> None:
    unused = changed(use_sliding_window=True, sliding_window=512, max_window_layers=36)
    assert from_hf_config(unused) == from_hf_config(QWEN3_8B)
    assert from_hf_config(changed(sliding_window=512)) == from_hf_config(QWEN3_8B)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        from_hf_config(QWEN3_8B).num_layers = 1  # type: ignore[misc]

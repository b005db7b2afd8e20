"""A model from a JSON file is the one that is described, and a shape that cannot be built is refused by its field."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from verify.models.configs import TINY_CONFIGS, NamedConfig, named_config
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, build_model, requested_config
from verify.models.shape_file import Shape, is_shape_file, read_shape, shape_text
from verify.strict_json import JsonFileError

SMALL = {
    "vocab_size": 19, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6,
}  # fmt: skip

SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "mlp_only_layers": [0]}

Write = Callable[[Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: Any) -> Path:
        path = tmp_path / "model.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return to_file


def request_of(shape: Shape, **changes: Any) -> ModelRequest:
    return ModelRequest(name="model.json", config=shape.config, lora=shape.lora, **changes)


def test_a_shape_is_read_with_its_defaults(write: Write) -> None:
    shape = read_shape(write(SMALL))
    assert shape.config == NamedConfig(**SMALL, tie_word_embeddings=False, weight_std=0.02)  # type: ignore[arg-type]
    assert shape.lora == LoraSpec()


def test_adapters_can_be_those_of_the_user(write: Write) -> None:
    assert read_shape(write({**SMALL, "lora": {"rank": 4, "alpha": 12, "strength": 0.5}})).lora == LoraSpec(
        rank=4, alpha=12, strength=0.5
    )


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_the_tiny_model_from_a_file_has_the_weights_of_the_named_one(write: Write, name: str) -> None:
    shape = Shape(named_config(name), LoraSpec(strength=0.3))
    read = read_shape(write(shape_text(shape)))
    assert read == shape
    named = build_model(ModelRequest(name=name, lora=shape.lora, seed=3), "float32").model.state_dict()
    from_file = build_model(request_of(read, seed=3), "float32").model.state_dict()
    assert named.keys() == from_file.keys()
    assert all(torch.equal(named[name], from_file[name]) for name in named)


def test_the_model_that_is_built_has_the_shape(write: Write) -> None:
    shape = read_shape(write({**SMALL, "tie_word_embeddings": True}))
    model = build_model(request_of(shape), "float32").model
    sizes = {name: tuple(p.shape) for name, p in model.named_parameters() if ".lora_" not in name}
    (embedding,) = [size for name, size in sizes.items() if "embed_tokens" in name]
    assert embedding == (19, 12)
    assert not any("lm_head" in name for name in sizes)  # tied
    assert {size for name, size in sizes.items() if "k_proj.base" in name} == {(2 * 6, 12)}
    assert {size for name, size in sizes.items() if "down_proj.base" in name} == {(12, 20)}
    assert sum("q_proj.base" in name for name in sizes) == 3
    assert requested_config(request_of(shape)).vocab_size == 19


def test_what_sets_a_family_apart_reaches_the_model(write: Write) -> None:
    llama = {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": SCALING, "mlp_bias": True, "rms_norm_eps": 1e-5}
    config = requested_config(request_of(read_shape(write({**SMALL, **llama}))))
    assert config.rope_parameters == {"rope_type": "llama3", "rope_theta": 5e5, **SCALING}
    assert (config.model_type, config.mlp_bias, config.attention_bias, config.rms_norm_eps) == (
        "llama",
        True,
        False,
        1e-5,
    )
    mistral = requested_config(request_of(read_shape(write({**SMALL, "model_type": "mistral", "sliding_window": 5}))))
    assert mistral.sliding_window == 5
    moe = request_of(read_shape(write({**SMALL, "model_type": "qwen3_moe", "experts": EXPERTS})))
    sizes = {name: tuple(p.shape) for name, p in build_model(moe, "float32").model.named_parameters()}
    assert [name.split(".layers.")[1][0] for name in sizes if name.endswith("experts.down_proj")] == ["1", "2"]
    assert {size for name, size in sizes.items() if name.endswith("experts.gate_up_proj")} == {(4, 2 * 6, 12)}


def test_the_depth_of_a_shape_can_be_cut_and_no_more(write: Write) -> None:
    shape = read_shape(write(SMALL))
    assert build_model(request_of(shape, num_layers=2), "float32").model.config.num_hidden_layers == 2
    with pytest.raises(ValueError, match=r"--layers 4: model\.json has 3 layers"):
        request_of(shape, num_layers=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads is 4, num_key_value_heads 3"),
        ({"num_key_value_heads": 8}, "num_attention_heads is 4, num_key_value_heads 8"),
        ({"head_dim": 7}, "head_dim is 7: rotary positions need an even number"),
        ({"hidden_size": 0}, r"hidden_size: .*\(it is 0\)"),
        ({"hidden_size": 12.0}, r"hidden_size: .*valid integer"),
        ({"hidden_size": 10**9}, "hidden_size: .*less than or equal to"),
        ({"vocab_size": 1}, "vocab_size: .*greater than or equal to 2"),
        ({"weight_std": 0}, "weight_std: .*greater than 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: .*valid boolean"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: unknown field"),
        ({"model_type": "gemma"}, "model_type: "),
        ({"model_type": "llama", "num_attention_heads": 8}, "hidden_size is 12, num_attention_heads 8"),
        ({"sliding_window": 8}, "sliding_window in a config of model_type qwen3: only mistral has it"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window: .*greater than or equal to 1"),
        ({"model_type": "qwen3_moe"}, "model_type qwen3_moe without experts"),
        (
            {"model_type": "qwen3_moe", "experts": {"num_experts": 4}},
            r"experts\.num_experts_per_tok: the field is missing",
        ),
        ({"model_type": "qwen3_moe", "experts": {**EXPERTS, "num_experts_per_tok": 5}}, "num_experts_per_tok is 5"),
        ({"rope_scaling": {**SCALING, "low_freq_factor": 4.0}}, r"low_freq_factor is 4\.0, high_freq_factor 4\.0"),
        ({"rope_scaling": {**SCALING, "rope_type": "yarn"}}, r"rope_scaling\.rope_type: unknown field"),
        ({"lora": {"rank": 0}}, r"lora\.rank: .*greater than or equal to 1"),
        ({"lora": {"dropout": 0.1}}, r"lora\.dropout: unknown field"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_by_its_field(write: Write, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(JsonFileError, match=message) as raised:
        read_shape(write({**SMALL, **changes}))
    assert str(raised.value).startswith("model file ")
    assert "\n" not in str(raised.value)


def test_a_missing_field_an_empty_file_and_no_file(write: Write, tmp_path: Path) -> None:
    with pytest.raises(JsonFileError, match="head_dim: the field is missing"):
        read_shape(write({name: value for name, value in SMALL.items() if name != "head_dim"}))
    with pytest.raises(JsonFileError, match="empty"):
        read_shape(write(""))
    with pytest.raises(JsonFileError, match="there is no such file"):
        read_shape(tmp_path / "nope.json")


def test_only_json_files_are_shapes() -> None:
    assert is_shape_file("a/b.JSON")
    assert not is_shape_file("tiny")
    assert not is_shape_file("checkpoint")


def test_a_config_of_its_own_needs_no_known_name() -> None:
    config = replace(named_config("tiny"), hidden_size=32)
    assert requested_config(ModelRequest(name="anything", config=config)).hidden_size == 32
    assert not ModelRequest(name=".", config=config).is_checkpoint

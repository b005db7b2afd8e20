"""A model from a JSON file: the shape of a decoder and its adapters, with seeded weights.

    {"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
     "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": false, "weight_std": 0.2, "lora": {"rank": 8}}

Other families say so, and what sets them apart:

    "model_type": "qwen2"
    "model_type": "llama", "rope_theta": 500000, "rope_scaling": {"factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4, "original_max_position_embeddings": 8192}, "attention_bias": false, "mlp_bias": false
    "model_type": "mistral", "sliding_window": 8
    "model_type": "qwen3_moe", "experts": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []}

Field names are those of transformers' configs; those of experts are gathered under ``experts``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from verify.models.configs import ExpertSizes, Llama3Rope, ModelType, NamedConfig
from verify.models.lora import LoraSpec
from verify.strict_json import JsonFileError, json_text, read_json

_Size = Annotated[int, Field(ge=1, le=2**20)]
_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Strength = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Shape:
    """A config with seeded weights, and the adapters on it."""

    config: NamedConfig
    lora: LoraSpec


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Lora(_Part):
    rank: _Size = 8
    alpha: _Size = 16
    strength: _Strength = 0.1


class _Rope(_Part):
    factor: _Factor
    low_freq_factor: _Factor
    high_freq_factor: _Factor
    original_max_position_embeddings: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor is {self.low_freq_factor}, high_freq_factor {self.high_freq_factor}: the former "
                "must be below the latter"
            )
        return self


class _Experts(_Part):
    num_experts: _Size
    num_experts_per_tok: _Size
    moe_intermediate_size: _Size
    norm_topk_prob: bool = True
    decoder_sparse_step: _Size = 1
    mlp_only_layers: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _a_token_finds_its_experts(self) -> Self:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"num_experts_per_tok is {self.num_experts_per_tok}, num_experts {self.num_experts}")
        return self


class _Shape(_Part):
    vocab_size: Annotated[int, Field(ge=2, le=2**20)]
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: Annotated[int, Field(ge=1, le=1024)]
    num_attention_heads: _Size
    num_key_value_heads: _Size
    head_dim: _Size
    tie_word_embeddings: bool = False
    weight_std: _Strength = 0.02
    model_type: ModelType = "qwen3"
    rms_norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-6
    rope_theta: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 1_000_000.0
    rope_scaling: _Rope | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Annotated[int, Field(ge=1)] | None = None
    experts: _Experts | None = None
    lora: _Lora = _Lora()

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, num_key_value_heads {self.num_key_value_heads}: "
                "every key head must serve the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}: rotary positions need an even number")
        if self.model_type == "llama" and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size is {self.hidden_size}, num_attention_heads {self.num_attention_heads}: transformers "
                "builds a Llama only where the former is a multiple of the latter"
            )
        self.config()  # refuses what the family does not have
        return self

    def config(self) -> NamedConfig:
        nested = {
            "rope_scaling": Llama3Rope(**self.rope_scaling.model_dump()) if self.rope_scaling else None,
            "experts": ExpertSizes(**self.experts.model_dump()) if self.experts else None,
        }
        return NamedConfig(**(self.model_dump(exclude={"lora"}) | nested))


def is_shape_file(name: str) -> bool:
    """Whether the name of a model is that of a JSON file."""
    return name.lower().endswith(".json")


_OF_TRANSFORMERS = (
    "architectures",
    "transformers_version",
    "hidden_act",
    "max_position_embeddings",
    "torch_dtype",
    "dtype",
)
"""Fields of which a config of transformers has some and a shape none."""


def is_transformers_config(path: Path) -> bool:
    """Whether a JSON file is a config of transformers rather than a shape."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and any(name in content for name in _OF_TRANSFORMERS)


def read_shape(path: Path) -> Shape:
    """Read a shape.

    Args:
        path: The JSON file; ``tie_word_embeddings`` (false), ``weight_std`` (0.02), ``lora`` (rank 8, alpha 16,
            strength 0.1), ``model_type`` (qwen3) and what sets families apart may be left out.

    Returns:
        The shape.

    Raises:
        JsonFileError: The file cannot be read, a field is unknown, missing or out of range, heads do not divide,
            head_dim is odd, or the family lacks an option.
    """
    if is_transformers_config(path):
        raise JsonFileError(
            f"model file {path}: a config of transformers, not a shape with seeded weights: give the folder of a "
            "checkpoint (packparity forecast takes the config alone)"
        )
    shape = read_json(path, _Shape, what="model")
    return Shape(shape.config(), LoraSpec(**shape.lora.model_dump()))


def shape_text(shape: Shape) -> str:
    """A shape as the text of a file that :func:`read_shape` reads."""
    config, lora = asdict(shape.config), asdict(shape.lora)
    del config["num_parameters"], lora["targets"]
    return json_text(_Shape.model_validate({**config, "lora": lora}).model_dump(mode="json", exclude_none=True))

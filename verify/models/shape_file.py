"""A model from a JSON file: the shape of a Qwen3 decoder and its adapters, with seeded weights.

    {"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
     "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": false, "weight_std": 0.2, "lora": {"rank": 8}}

Field names are those of transformers' ``Qwen3Config``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from verify.models.configs import NamedConfig
from verify.models.lora import LoraSpec
from verify.strict_json import json_text, read_json

_Size = Annotated[int, Field(ge=1, le=2**20)]
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
    lora: _Lora = _Lora()

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, num_key_value_heads {self.num_key_value_heads}: "
                "every key head must serve the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}: rotary positions need an even number")
        return self


def is_shape_file(name: str) -> bool:
    """Whether the name of a model is that of a JSON file."""
    return name.lower().endswith(".json")


def read_shape(path: Path) -> Shape:
    """Read a shape.

    Args:
        path: The JSON file; ``tie_word_embeddings`` (false), ``weight_std`` (0.02) and ``lora`` (rank 8, alpha 16,
            strength 0.1) may be left out.

    Returns:
        The shape.

    Raises:
        JsonFileError: The file cannot be read, a field is unknown, missing or out of range, heads do not divide, or
            head_dim is odd.
    """
    shape = read_json(path, _Shape, what="model")
    return Shape(NamedConfig(**shape.model_dump(exclude={"lora"})), LoraSpec(**shape.lora.model_dump()))


def shape_text(shape: Shape) -> str:
    """A shape as the text of a file that :func:`read_shape` reads."""
    config, lora = asdict(shape.config), asdict(shape.lora)
    del config["num_parameters"], lora["targets"]
    return json_text(_Shape(**config, lora=_Lora(**lora)).model_dump())

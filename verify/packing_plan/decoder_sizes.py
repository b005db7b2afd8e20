"""The sizes of the model whose FLOPs are predicted: a published config, a shape file, or the config of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from verify.models.configs import NAMED_CONFIGS, NamedConfig, named_config
from verify.packing_plan.costs import Decoder
from verify.strict_json import JsonFileError, read_json

GATED_FAMILIES = ("qwen3", "qwen2", "llama", "mistral", "phi3", "gemma", "olmo2", "granite", "smollm3")
"""Values of ``model_type`` whose layers are attention and a gated feed-forward of three matrices, all of it dense."""

_Size = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Sizes of a decoder, and how reports call it.

    Args:
        name: A published name, or the base name of a file or folder.
        sizes: The sizes.
    """

    name: str
    sizes: Decoder


class _Checkpoint(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    model_type: str
    vocab_size: _Size
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: _Size
    num_attention_heads: _Size
    num_key_value_heads: _Size
    head_dim: _Size = 0


def read_decoder_sizes(model: str) -> DecoderSizes:
    """Look a model up, or read its file.

    Args:
        model: A published name, a JSON file of a shape, or the folder of a checkpoint; no weights are read.

    Returns:
        Its sizes.

    Raises:
        ValueError: An unknown name, a file that is none of these, or a family whose FLOPs are counted in another way.
    """
    path = Path(model)
    if model.lower() in NAMED_CONFIGS:
        return DecoderSizes(model.lower(), _dense(named_config(model), model))
    if model.lower().endswith(".json"):
        from verify.models.shape_file import read_shape  # with torch and peft, for the adapters that a shape has

        return DecoderSizes(path.name, _dense(read_shape(path).config, model))
    if path.is_dir():
        return DecoderSizes(path.resolve().name, _of_checkpoint(path))
    named_config(model)  # says which names there are
    raise AssertionError(f"{model} is not among the names, but has a config")


def _dense(config: NamedConfig, model: str) -> NamedConfig:
    if config.experts is not None:
        raise ValueError(
            f"model {model}: FLOPs are predicted for dense decoders with gated feed-forward layers, not for experts"
        )
    return config


def _of_checkpoint(folder: Path) -> Decoder:
    config = read_json(folder / "config.json", _Checkpoint, what="checkpoint's config")
    if config.model_type not in GATED_FAMILIES:
        raise JsonFileError(
            f"{folder / 'config.json'}: model_type {config.model_type!r}; FLOPs are predicted for dense decoders with "
            f"gated feed-forward layers: {', '.join(GATED_FAMILIES)}"
        )
    if config.head_dim:
        return config
    if config.model_type == "qwen3" or config.hidden_size % config.num_attention_heads:
        raise JsonFileError(
            f"{folder / 'config.json'}: no head_dim, and it does not follow from hidden_size {config.hidden_size} and "
            f"num_attention_heads {config.num_attention_heads}"
        )
    return config.model_copy(update={"head_dim": config.hidden_size // config.num_attention_heads})

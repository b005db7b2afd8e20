"""Local checkpoint folders: safetensors only, every key accounted for, no code from the folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from reports.words import plural
from verify.models.advice import without_advice
from verify.models.random_weights import freeze, implementations
from verify.models.saved_names import name_in_model
from verify.models.vision import VISION_FAMILIES, VISION_TOWER, auto_class, check_image_config, see_once

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
"""The number of a layer in the name of its weights; families of GPT-2's kind write "h.0"."""

_COMPUTED = ("rotary_emb.inv_freq", "embeddings.position_ids")
"""Ends of names of what older transformers wrote among the weights, though the config says it."""


class CheckpointError(ValueError):
    """A checkpoint folder cannot be used; the message says what is wrong and what would be right."""


def load_checkpoint(folder: Path, *, num_layers: int | None, dtype: torch.dtype) -> tuple[Any, int]:
    """Load a causal LM, or a vision-language model of type llava, from a folder with ``config.json`` and safetensors.

    Args:
        folder: The checkpoint folder.
        num_layers: Keep only the first layers, or None for all.
        dtype: float64, float32 or bfloat16.

    Returns:
        The model on the CPU in eval mode, and the depth that the folder's config publishes.

    Raises:
        CheckpointError: No config, no safetensors (pickled weights are refused), missing or unexpected keys, a shape
            that does not fit, a damaged file, a depth that the checkpoint does not have, or a tower that does not run.
    """
    config = read_config(folder)
    of_text = config.get_text_config()
    published, depth = int(of_text.num_hidden_layers), kept_layers(folder, config, num_layers)
    of_text.num_hidden_layers = depth
    if getattr(of_text, "layer_types", None):
        of_text.layer_types = of_text.layer_types[:depth]
    try:
        with no_init_weights(), without_advice():
            model = auto_class(config).from_config(
                config, dtype=dtype, trust_remote_code=False, **implementations(config)
            )
    except Exception as error:  # whatever a config that is not one makes transformers raise
        raise CheckpointError(f"{folder}/config.json: no causal LM can be built from it: {error}") from error
    model.tie_weights()  # part of the initialisation that was left out
    tensors = _read_tensors(folder)
    if config.model_type in VISION_FAMILIES:
        tensors = ((name_in_model(name), tensor) for name, tensor in tensors)
    _fill(model, tensors, folder, depth)
    freeze(model)
    try:
        see_once(model)
    except Exception as error:  # whatever a tower raises that does not fit its config
        raise CheckpointError(f"{folder}/config.json: the vision tower does not run as it says: {error}") from error
    return model, published


def kept_layers(folder: Path, config: Any, num_layers: int | None) -> int:
    """How many layers of the decoder are loaded.

    Args:
        folder: The checkpoint folder.
        config: Its config.
        num_layers: The first layers that are asked for, or None for all. A tower that sees images is never cut.

    Raises:
        CheckpointError: A depth that the checkpoint does not have.
    """
    published = int(config.get_text_config().num_hidden_layers)
    depth = published if num_layers is None else num_layers
    if not 1 <= depth <= published:
        raise CheckpointError(f"{folder}: {plural(depth, 'layer')} asked for; the checkpoint has {published}")
    return depth


def read_config(folder: Path) -> Any:
    """The transformers config of a checkpoint folder.

    Raises:
        CheckpointError: No folder, no config.json, or one that cannot be read or is of images that cannot be laid out.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: give the folder of a checkpoint")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} has no config.json: it is not a checkpoint of transformers")
    return read_config_file(folder / "config.json")


def read_config_file(file: Path) -> Any:
    """A transformers config, whatever the name of its file.

    Raises:
        CheckpointError: It cannot be read or is of images that cannot be laid out.
    """
    try:
        config = AutoConfig.from_pretrained(file, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a config that is not one makes transformers raise
        raise CheckpointError(f"{file}: {error}") from error
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(f"{file}: quantised weights are not supported; give the plain weights")
    try:
        check_image_config(config)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error
    return config


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder, those of its index where it has one.

    Raises:
        CheckpointError: There is none, one that the index names is not there, or the index is not one.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{index}: not an index with a weight_map: {error}") from error
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise CheckpointError(
                f"{index} names {absent[0]}, which is not there ({len(absent)} of {len(names)} absent)"
            )
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
        found = f"found pickled weights {pickled[0]}, which are never opened" if pickled else "found no weights"
        raise CheckpointError(f"{folder}: {found}; convert them to safetensors")
    return files


def _read_tensors(folder: Path) -> Iterable[tuple[str, Tensor]]:
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt", device="cpu") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - a safe_open handle is not a mapping
                    yield name, tensors.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{file}: damaged or not safetensors: {error}") from error


def _by_name_on_disk(model: Any) -> dict[str, Tensor]:
    """Parameters by their names in a checkpoint, where each expert's matrices lie on their own.

    In memory an expert's gate and up projection are the upper and the lower half of one matrix.
    """
    places: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        experts, _, part = name.rpartition(".")
        if not experts.endswith(".experts"):
            places[name] = parameter
            continue
        for index, matrix in enumerate(parameter.detach()):
            halves = zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True)
            of_expert = dict(halves) if part == "gate_up_proj" else {part: matrix}
            places |= {f"{experts}.{index}.{each}.weight": place for each, place in of_expert.items()}
    return places


def _fill(model: Any, tensors: Iterable[tuple[str, Tensor]], folder: Path, depth: int) -> None:
    parameters = _by_name_on_disk(model)
    tied = {name for name in model.state_dict() if name not in parameters} & {"lm_head.weight"}
    filled: set[str] = set()
    unexpected = []
    with torch.no_grad():
        for name, tensor in tensors:
            layer = None if f".{VISION_TOWER}." in name else _LAYER.search(name)
            if (layer and int(layer[1]) >= depth) or name in tied or name.endswith(_COMPUTED):
                continue
            if name not in parameters:
                unexpected.append(name)
                continue
            if name in filled:
                raise CheckpointError(f"{folder}: {name} stands in the files twice")
            if tensor.shape != parameters[name].shape:
                raise CheckpointError(
                    f"{folder}: {name} has shape {tuple(tensor.shape)}; "
                    f"the config asks for {tuple(parameters[name].shape)}"
                )
            if not tensor.is_floating_point():
                raise CheckpointError(f"{folder}: {name} holds {tensor.dtype}; floating point weights are needed")
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(f"{folder}: {name} holds values that are not finite")
            parameters[name].copy_(tensor)
            filled.add(name)
    missing = sorted(parameters.keys() - filled)
    if missing or unexpected:
        parts = [
            f"{len(names)} {side} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
            for side, names in (("missing", missing), ("unexpected", sorted(unexpected)))
            if names
        ]
        raise CheckpointError(f"{folder}: the weights do not fit config.json: {' and '.join(parts)} keys")

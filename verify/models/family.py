"""A tiny causal LM of any family that the installed transformers has, with seeded weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import PreTrainedConfig

from verify.families.names import select_families
from verify.families.tiny_config import tiny_config
from verify.models.advice import without_advice
from verify.models.configs import NAMED_CONFIGS, TINY_PREFIX
from verify.models.lora import rounded_normal
from verify.models.random_weights import freeze, implementations
from verify.models.vision import VISION_FAMILIES, VISION_MODULES, auto_class, see_once, tiny_llava_config
from verify.subject import said_by

WEIGHT_STD = 0.2
_VOCAB_SIZE = 257
_NUM_POSITIONS = 4096
_MOST_PARAMETERS = 10_000_000
_NORM_SPREAD = 0.1
_NO_SDPA = "does not support an attention implementation through torch.nn.functional.scaled_dot_product_attention"


def tiny_family(name: str) -> str:
    """The model type that a name asks for: "gemma3_text" of "tiny-gemma3_text"; "" where it names no family.

    Args:
        name: Name of a model.

    Raises:
        ValueError: transformers has no causal LM of that type.
    """
    if not name.lower().startswith(TINY_PREFIX) or name.lower() in NAMED_CONFIGS:
        return ""
    family = name.lower().removeprefix(TINY_PREFIX)
    return family if family in VISION_FAMILIES else select_families([family])[0]


def family_config(family: str) -> PreTrainedConfig:
    """The config of a tiny model: every kind of layer that the family's default config has, at small sizes.

    Raises:
        ValueError: It cannot be built, not small, or not with SDPA, which the unpacked path is computed with.
    """
    try:
        if family in VISION_FAMILIES:
            config = tiny_llava_config(num_text_tokens=_VOCAB_SIZE, num_positions=_NUM_POSITIONS)
        else:
            config = tiny_config(family, vocab_size=_VOCAB_SIZE, num_positions=_NUM_POSITIONS)
        size = sum(parameter.numel() for parameter in _without_weights(config).parameters())
    except Exception as error:  # whatever a config or a model class raises
        why = said_by(error)
        if _NO_SDPA in why:
            why = "transformers computes it without SDPA, which the unpacked path is computed with"
        raise ValueError(f"model {TINY_PREFIX}{family}: {why}") from error
    if size > _MOST_PARAMETERS:
        raise ValueError(
            f"model {TINY_PREFIX}{family}: {size:,} parameters at its smallest; give the folder of a checkpoint"
        )
    return config


def build_family(family: str, *, dtype: torch.dtype, seed: int) -> Any:
    """Build a tiny causal LM of a family.

    Matrices are drawn from a seeded normal and biases too, one-dimensional weights around what they are initialised
    to; all values are such that bfloat16 represents them, so that every dtype runs the same.

    Args:
        family: A model type.
        dtype: float64, float32 or bfloat16.
        seed: Seed of the weights.

    Returns:
        The model on the CPU, in eval mode, nothing requiring grad.

    Raises:
        ValueError: As :func:`family_config`.
    """
    config = family_config(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for what is initialised at random and not drawn anew below
        with without_advice():
            model = auto_class(config).from_config(config, dtype=dtype, **implementations(config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1 or name.endswith("bias"):
                values = rounded_normal(parameter.shape, WEIGHT_STD, generator)
            elif name.endswith("weight"):
                values = parameter.float() + rounded_normal(parameter.shape, _NORM_SPREAD, generator)
            else:
                values = parameter
            parameter.copy_(values.to(torch.bfloat16))
    see_once(model)
    return freeze(model)


def module_names(config: PreTrainedConfig) -> tuple[str, ...]:
    """Names of the modules of a causal LM, read without making its weights.

    Raises:
        ValueError: transformers cannot build it.
    """
    try:
        return tuple(name for name, _ in _without_weights(config).named_modules())
    except Exception as error:  # whatever a model class raises
        raise ValueError(f"no causal LM of model type {config.model_type} can be built: {said_by(error)}") from error


def num_parameters(config: PreTrainedConfig, num_layers: int | None) -> tuple[int, int]:
    """Parameters of a causal LM, tied ones once, counted without making them.

    Args:
        config: The published config.
        num_layers: Layers that are kept, or None for all; no more than the config has.

    Returns:
        The number of all, and of those that do not belong to what sees images.

    Raises:
        ValueError: transformers cannot build it.
    """
    cut = copy.deepcopy(config)
    of_text = cut.get_text_config()
    if num_layers is not None:
        of_text.num_hidden_layers = num_layers
        if getattr(of_text, "layer_types", None):
            of_text.layer_types = of_text.layer_types[:num_layers]
    try:
        model = _without_weights(cut)
        model.tie_weights()
    except Exception as error:  # whatever a model class raises
        raise ValueError(f"no causal LM of model type {config.model_type} can be built: {said_by(error)}") from error
    sizes = [(name.split("."), parameter.numel()) for name, parameter in model.named_parameters()]
    return sum(size for _, size in sizes), sum(size for parts, size in sizes if not set(parts) & set(VISION_MODULES))


def _without_weights(config: PreTrainedConfig) -> Any:
    with torch.device("meta"), without_advice():
        return auto_class(config).from_config(config, **implementations(config))

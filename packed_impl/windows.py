"""Sliding windows: which layers of a model have one, and how its layers are handed what differs between them.

A query sees a key whose position on its path is less than ``window`` before its own. Stock models come in two kinds:
one mask for all layers (Mistral: every layer has the window), or a mask for each of the config's layer types, which a
caller may give as a mapping (Qwen2, Gemma: "full_attention" and "sliding_attention").
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from packed_impl.modules import all_modules

_Made = TypeVar("_Made")

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class LayerWindows:
    """The window of each type of layer that a model has.

    Args:
        by_type: Window of each layer type, itself included: 1 sees only itself; None for no window.
    """

    by_type: Mapping[str, int | None]

    def handed_out(self, make: Callable[[int | None], _Made]) -> _Made | dict[str, _Made]:
        """Make what layers need to know, in the form in which a model call takes it.

        Args:
            make: Makes it for one window.

        Returns:
            What was made, or, in a model of several layer types, one of them for each type.
        """
        made = {kind: make(window) for kind, window in self.by_type.items()}
        return made if len(made) > 1 else next(iter(made.values()))


FULL_ATTENTION = LayerWindows({_FULL: None})


def layer_windows(model: PreTrainedModel) -> LayerWindows:
    """Find the windows of a model's layers.

    Args:
        model: The model, without wrappers.

    Returns:
        The window of each layer type.

    Raises:
        ValueError: Layers that are neither full nor sliding, or windows that the model's forward does not apply as its
            config says: packed rows would compute something else than the model does with one sequence.
    """
    modules = [module for module in all_modules(model) if isinstance(module, PreTrainedModel)]
    config = model.config.get_text_config()
    kinds, window = _kinds(config), getattr(config, "sliding_window", None)
    if kinds - {_FULL, _SLIDING}:
        raise ValueError(f"{_layers(config)}: packed rows need full or sliding attention")
    for other in (module.config for module in modules):
        if _kinds(other) != {_FULL} and (_kinds(other), getattr(other, "sliding_window", None)) != (kinds, window):
            raise ValueError(f"{_layers(other)}: beside the text layers packed rows need full attention")
    names = {name for module in modules for name in inspect.unwrap(type(module).forward).__code__.co_names}
    applies_windows = "create_sliding_window_causal_mask" in names
    if _SLIDING in kinds and not (applies_windows and isinstance(window, int) and window > 0):
        raise ValueError(f"{_layers(config)}: packed rows need a window of at least 1 that the model's forward applies")
    takes_mapping = applies_windows and "dict" in names
    if not takes_mapping and kinds != {_SLIDING if applies_windows and window is not None else _FULL}:
        raise ValueError(
            f"{_layers(config)}: the model's forward has one mask for all layers, from sliding_window alone"
        )
    return LayerWindows({kind: window if kind == _SLIDING else None for kind in sorted(kinds)})


def layer_type(module: nn.Module) -> str:
    """The type of the layer that an attention module is in.

    Args:
        module: An attention module of a model of several layer types.

    Returns:
        Its entry in the config's ``layer_types``.

    Raises:
        ValueError: The module does not say which layer it is in.
    """
    layer_types = getattr(getattr(module, "config", None), "layer_types", None)
    index = getattr(module, "layer_idx", None)
    if layer_types is None or index is None:
        raise ValueError(f"{type(module).__name__} has no layer_idx or no config.layer_types: its window is not known")
    return str(layer_types[index])


def _kinds(config: PreTrainedConfig) -> set[str]:
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        return set(layer_types)
    return {_FULL if getattr(config, "sliding_window", None) is None else _SLIDING}


def _layers(config: PreTrainedConfig) -> str:
    window = getattr(config, "sliding_window", None)
    return f"{type(config).__name__} has layers of type {', '.join(sorted(_kinds(config)))} and sliding_window {window}"

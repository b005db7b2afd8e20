"""The sliding window that a config gives to layers of its model."""

from __future__ import annotations

from typing import Any


def sliding_window(config: Any, num_layers: int | None = None) -> int | None:
    """The window of those layers that have one.

    A config may hold a size that no layer has: Qwen2's windows begin behind ``max_window_layers``.

    Args:
        config: A transformers config.
        num_layers: Layers that are left of the model; None for all.

    Returns:
        Tokens that a query sees, itself included; None where every layer sees all.
    """
    text = config.get_text_config()
    window, layer_types = getattr(text, "sliding_window", None), getattr(text, "layer_types", None)
    if layer_types and "sliding_attention" not in layer_types[:num_layers]:
        return None
    return window

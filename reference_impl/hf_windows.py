"""Where a transformers config puts sliding windows: each family has fields of its own for it."""

from __future__ import annotations

from typing import Literal

from reference_impl.attention import SlidingWindow
from reference_impl.hf_fields import HfConfig, required

WindowField = Literal["never", "in every layer", "in every layer, if used", "by layer, if used"]
"""Where windows stand in a family: Llama, Mistral, Qwen3-MoE, and Qwen2 and Qwen3 in this order.

"If used" is the switch ``use_sliding_window``, without which ``sliding_window`` means nothing.
"""


def read_window(config: HfConfig, where: WindowField) -> SlidingWindow | None:
    """The window of a decoder and the layers that have it.

    Args:
        config: A transformers config.
        where: What its family has.

    Returns:
        The window; None for full attention in every layer.

    Raises:
        ValueError: A window that the family would not heed or that is not positive, layer types of another kind or
            number or that contradict the rest, or no word on which layers have the window.
    """
    if where == "never":
        _refuse_window(config)
        return None
    size = config.get("sliding_window")
    if where != "in every layer" and not config.get("use_sliding_window"):
        size = None
    if size is not None and not int(size) > 0:
        raise ValueError(f"sliding_window is {size!r}: it must be positive, or None for full attention")
    layers = _layers_by_type(config, size) if where == "by layer, if used" else _every_layer(config, size)
    return SlidingWindow(int(size), layers) if size is not None and layers else None


def _every_layer(config: HfConfig, size: int | None) -> frozenset[int]:
    kind = "full_attention" if size is None else "sliding_attention"
    if others := sorted(set(config.get("layer_types") or ()) - {kind}):
        raise ValueError(f"layer_types has {', '.join(others)}: with sliding_window {size} every layer is {kind}")
    return frozenset(range(required(config, "num_hidden_layers")))


def _layers_by_type(config: HfConfig, size: int | None) -> frozenset[int]:
    """The windowed layers: those that ``layer_types`` names, or without it all from ``max_window_layers`` on."""
    num_layers, layer_types = required(config, "num_hidden_layers"), config.get("layer_types")
    if layer_types is None:
        return frozenset() if size is None else frozenset(range(required(config, "max_window_layers"), num_layers))
    if others := sorted(set(layer_types) - {"full_attention", "sliding_attention"}):
        raise ValueError(
            f"layer_types has {', '.join(others)}: the oracle computes only full_attention and sliding_attention"
        )
    if len(layer_types) != num_layers:
        raise ValueError(f"layer_types names {len(layer_types)} layers: num_hidden_layers is {num_layers}")
    layers = frozenset(index for index, kind in enumerate(layer_types) if kind == "sliding_attention")
    if layers and size is None:
        raise ValueError(
            f"layer_types has sliding_attention in layers {', '.join(map(str, sorted(layers)))}, but there is no "
            "window: it takes use_sliding_window True and a sliding_window"
        )
    return layers


def _refuse_window(config: HfConfig) -> None:
    """Refuse what would be ignored: whoever set it expects another model."""
    if others := sorted(set(config.get("layer_types") or ()) - {"full_attention"}):
        raise ValueError(
            f"layer_types has {', '.join(others)}: in {config['model_type']} every layer has full attention"
        )
    if config.get("use_sliding_window") and config.get("sliding_window") is not None:
        raise ValueError(
            f"sliding window of {config['sliding_window']} tokens: in {config['model_type']} every layer has full "
            "attention"
        )

"""The parameters of a decoder by their Hugging Face names, and the checks that a mapping holds just those."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from reference_impl.config import DecoderConfig

Weights = Mapping[str, Tensor]

EMBEDDING = "model.embed_tokens"
FINAL_NORM = "model.norm"
HEAD = "lm_head"


def layer_name(index: int) -> str:
    """Name of a decoder layer, such as ``model.layers.0``."""
    return f"model.layers.{index}"


def linear_shapes(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Name every linear module that may have an adapter, the head included.

    Args:
        config: The decoder.

    Returns:
        Module name to (out, in) features.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    query_width, key_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, int]] = {}
    for index in range(config.num_layers):
        layer = layer_name(index)
        shapes[f"{layer}.self_attn.q_proj"] = (query_width, hidden)
        shapes[f"{layer}.self_attn.k_proj"] = (key_width, hidden)
        shapes[f"{layer}.self_attn.v_proj"] = (key_width, hidden)
        shapes[f"{layer}.self_attn.o_proj"] = (hidden, query_width)
        if config.experts is not None and index in config.experts.layers:
            continue
        shapes[f"{layer}.mlp.gate_proj"] = (inner, hidden)
        shapes[f"{layer}.mlp.up_proj"] = (inner, hidden)
        shapes[f"{layer}.mlp.down_proj"] = (hidden, inner)
    shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def weight_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name every weight of the decoder.

    Args:
        config: The decoder.

    Returns:
        Weight name to shape.
    """
    shapes: dict[str, tuple[int, ...]] = {
        f"{EMBEDDING}.weight": (config.vocab_size, config.hidden_size),
        f"{FINAL_NORM}.weight": (config.hidden_size,),
    }
    for module, shape in linear_shapes(config).items():
        if module != HEAD or not config.tied:
            shapes[f"{module}.weight"] = shape
        if _has_bias(module, config):
            shapes[f"{module}.bias"] = shape[:1]
    for index in range(config.num_layers):
        layer = layer_name(index)
        shapes[f"{layer}.input_layernorm.weight"] = (config.hidden_size,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (config.hidden_size,)
        if config.qk_norm:
            shapes[f"{layer}.self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (config.head_dim,)
        shapes |= _expert_shapes(f"{layer}.mlp", index, config)
    return shapes


def _expert_shapes(name: str, index: int, config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The router, and the experts' matrices as one tensor each; empty for a layer with a dense MLP."""
    experts = config.experts
    if experts is None or index not in experts.layers:
        return {}
    return {
        f"{name}.gate.weight": (experts.count, config.hidden_size),
        f"{name}.experts.gate_up_proj": (experts.count, 2 * experts.intermediate_size, config.hidden_size),
        f"{name}.experts.down_proj": (experts.count, config.hidden_size, experts.intermediate_size),
    }


def _has_bias(module: str, config: DecoderConfig) -> bool:
    if module == HEAD:
        return False
    if ".mlp." in module:
        return config.mlp_bias
    return config.attention_output_bias if module.endswith(".o_proj") else config.attention_bias


def check_weights(weights: Weights, config: DecoderConfig) -> None:
    """Refuse a mapping that lacks a weight, holds one too many, or has one of another shape.

    Args:
        weights: The weights by name.
        config: The decoder that they should belong to.

    Raises:
        ValueError: Names missing, names that nothing would use, or a wrong shape.
    """
    shapes = weight_shapes(config)
    if missing := sorted(shapes.keys() - weights.keys()):
        raise ValueError(f"{len(missing)} weights missing: {_listed(missing)}")
    if unused := sorted(weights.keys() - shapes.keys()):
        hint = " (the head is tied to the embedding: leave lm_head.weight out)" if f"{HEAD}.weight" in unused else ""
        raise ValueError(f"{len(unused)} weights that the decoder does not use: {_listed(unused)}{hint}")
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"{name} has shape {tuple(weights[name].shape)}: the config asks for {shape}")


def _listed(names: list[str], limit: int = 12) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")

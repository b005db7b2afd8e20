"""The architecture of a decoder as numbers and switches, read from a transformers config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from reference_impl.attention import SlidingWindow
from reference_impl.experts import Experts
from reference_impl.hf_fields import HfConfig, read_experts, read_rope, refuse_other_mathematics, required
from reference_impl.hf_windows import WindowField, read_window
from reference_impl.rope import Llama3Scaling


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What has to be known about a Llama-like decoder to compute its log-probs.

    Args:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        num_layers: Number of decoder layers.
        num_heads: Query heads per layer.
        num_kv_heads: Key and value heads per layer; each serves ``num_heads / num_kv_heads`` query heads.
        head_dim: Width of one head. ``num_heads * head_dim`` need not equal ``hidden_size``.
        intermediate_size: Width inside the MLP.
        rms_norm_eps: Added to the mean square in every RMSNorm.
        rope_theta: Base of the rotary frequencies.
        qk_norm: Queries and keys pass an RMSNorm over each head before they are rotated (Qwen3).
        attention_bias: ``q_proj``, ``k_proj`` and ``v_proj`` have biases.
        attention_output_bias: ``o_proj`` has a bias.
        mlp_bias: ``gate_proj``, ``up_proj`` and ``down_proj`` have biases.
        tied: The output head is the embedding matrix, and there is no ``lm_head.weight``.
        rope_scaling: How rotary frequencies are slowed for a longer context (Llama 3); None for not at all.
        sliding_window: The layers in which a query sees only the last few tokens, and how many; None for none.
        experts: The layers whose MLP is made of experts, and these (Qwen3-MoE); None for dense MLPs only.

    Raises:
        ValueError: A size that is not positive, query heads that are no multiple of the key heads, an odd head_dim,
            or a window in a layer that does not exist.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    qk_norm: bool
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    tied: bool
    rope_scaling: Llama3Scaling | None = None
    sliding_window: SlidingWindow | None = None
    experts: Experts | None = None

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
        )
        for name in (*sizes, "rms_norm_eps", "rope_theta"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be positive")
        if self.sliding_window is not None and not self.sliding_window.layers <= set(range(self.num_layers)):
            raise ValueError(f"a window in layers {sorted(self.sliding_window.layers)}: there are {self.num_layers}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} query heads over {self.num_kv_heads} key heads: expected a multiple of the latter"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}: rotary embedding turns pairs, so it must be even")

    def window_in(self, layer: int) -> int | None:
        """How many tokens a query of that layer sees, itself included; None for all tokens so far."""
        window = self.sliding_window
        return window.size if window is not None and layer in window.layers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What a model type fixes, and what it leaves to the config.

    Args:
        qk_norm: Queries and keys are normalised per head.
        attention_bias: On no projection, on those of queries, keys and values, or on all four if the config says so.
        mlp_bias: The MLP has biases if the config says so; else never.
        head_dim_follows: A missing head_dim is the hidden size over the number of heads.
        windowed: Where a window stands, and what it takes to have one.
        has_experts: MLPs are made of experts, but for those of layers that the config names.
    """

    qk_norm: bool = False
    attention_bias: Literal["none", "query, key and value", "as configured"] = "as configured"
    mlp_bias: bool = False
    head_dim_follows: bool = True
    windowed: WindowField = "never"
    has_experts: bool = False


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(mlp_bias=True),
    "mistral": _Family(attention_bias="none", windowed="in every layer"),
    "qwen2": _Family(attention_bias="query, key and value", windowed="by layer, if used"),
    "qwen3": _Family(qk_norm=True, head_dim_follows=False, windowed="by layer, if used"),
    "qwen3_moe": _Family(qk_norm=True, head_dim_follows=False, windowed="in every layer, if used", has_experts=True),
}


def from_hf_config(config: HfConfig) -> DecoderConfig:
    """Read a transformers config (``config.to_dict()`` or a ``config.json``).

    Args:
        config: The config of a llama, mistral, qwen2, qwen3 or qwen3_moe causal language model.

    Returns:
        The decoder it describes.

    Raises:
        ValueError: An architecture, activation, rotary scaling, kind of attention or other option that the oracle
            does not compute, or a value that is missing.
    """
    model_type = str(config.get("model_type"))
    if model_type not in _FAMILIES:
        raise ValueError(f"model_type {model_type!r} is not known to the oracle: it computes {', '.join(_FAMILIES)}")
    family = _FAMILIES[model_type]
    refuse_other_mathematics(config)
    _refuse_other_biases(config, family)
    num_heads = required(config, "num_attention_heads")
    # A transformers config without key heads means one per query head: plain multi-head attention.
    num_kv_heads = config.get("num_key_value_heads")
    rope_theta, rope_scaling = read_rope(config)
    configured_bias = family.attention_bias == "as configured" and bool(config.get("attention_bias"))
    return DecoderConfig(
        vocab_size=required(config, "vocab_size"),
        hidden_size=required(config, "hidden_size"),
        num_layers=required(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
        head_dim=_head_dim(config, family),
        intermediate_size=required(config, "intermediate_size"),
        rms_norm_eps=required(config, "rms_norm_eps"),
        rope_theta=rope_theta,
        qk_norm=family.qk_norm,
        attention_bias=configured_bias or family.attention_bias == "query, key and value",
        attention_output_bias=configured_bias,
        mlp_bias=bool(config.get("mlp_bias")),
        tied=bool(config.get("tie_word_embeddings", False)),
        rope_scaling=rope_scaling,
        sliding_window=read_window(config, family.windowed),
        experts=read_experts(config) if family.has_experts else None,
    )


def _head_dim(config: HfConfig, family: _Family) -> int:
    head_dim = config.get("head_dim")
    if head_dim is not None:
        return int(head_dim)
    if not family.head_dim_follows:
        raise ValueError("the config has no head_dim: in Qwen3 it does not follow from the other sizes")
    hidden_size, num_heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    if hidden_size % num_heads:
        raise ValueError(
            f"the config has no head_dim, and hidden_size {hidden_size} is no multiple of {num_heads} heads"
        )
    return int(hidden_size // num_heads)


def _refuse_other_biases(config: HfConfig, family: _Family) -> None:
    """Refuse a switch that transformers would not heed: whoever set it expects another model."""
    fixed = {} if family.attention_bias == "as configured" else {"attention_bias": family.attention_bias != "none"}
    fixed |= {} if family.mlp_bias else {"mlp_bias": False}
    for name, value in fixed.items():
        if config.get(name) not in (None, value):
            raise ValueError(f"{name} is {config[name]!r}: in {config['model_type']} it is always {value}")

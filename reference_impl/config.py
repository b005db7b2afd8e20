"""The architecture of a decoder as numbers and switches, read from a transformers config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

HfConfig = Mapping[str, Any]


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

    Raises:
        ValueError: A size that is not positive, query heads that are no multiple of the key heads, or an odd
            head_dim.
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
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} query heads over {self.num_kv_heads} key heads: expected a multiple of the latter"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}: rotary embedding turns pairs, so it must be even")


def _llama_switches(config: HfConfig) -> dict[str, bool]:
    bias = bool(config.get("attention_bias", False))
    return {
        "qk_norm": False,
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bool(config.get("mlp_bias", False)),
    }


def _qwen2_switches(config: HfConfig) -> dict[str, bool]:
    return {"qk_norm": False, "attention_bias": True, "attention_output_bias": False, "mlp_bias": False}


def _qwen3_switches(config: HfConfig) -> dict[str, bool]:
    bias = bool(config.get("attention_bias", False))
    return {"qk_norm": True, "attention_bias": bias, "attention_output_bias": bias, "mlp_bias": False}


_SWITCHES: Mapping[str, Callable[[HfConfig], dict[str, bool]]] = {
    "llama": _llama_switches,
    "qwen2": _qwen2_switches,
    "qwen3": _qwen3_switches,
}


def from_hf_config(config: HfConfig) -> DecoderConfig:
    """Read a transformers config (``config.to_dict()`` or a ``config.json``).

    Args:
        config: The config of a llama, qwen2 or qwen3 causal language model.

    Returns:
        The decoder it describes.

    Raises:
        ValueError: An architecture, activation, rotary scaling or sliding window that the oracle does not
            compute, or a value that is missing.
    """
    model_type = str(config.get("model_type"))
    if model_type not in _SWITCHES:
        raise ValueError(f"model_type {model_type!r} is not known to the oracle: it computes {', '.join(_SWITCHES)}")
    if config.get("hidden_act") != "silu":
        raise ValueError(f"hidden_act is {config.get('hidden_act')!r}: the oracle computes only 'silu'")
    _refuse_sliding_window(config)
    num_heads = _required(config, "num_attention_heads")
    # A transformers config without key heads means one per query head: plain multi-head attention.
    num_kv_heads = config.get("num_key_value_heads")
    return DecoderConfig(
        vocab_size=_required(config, "vocab_size"),
        hidden_size=_required(config, "hidden_size"),
        num_layers=_required(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
        head_dim=_head_dim(config),
        intermediate_size=_required(config, "intermediate_size"),
        rms_norm_eps=_required(config, "rms_norm_eps"),
        rope_theta=_rope_theta(config),
        tied=bool(config.get("tie_word_embeddings", False)),
        **_SWITCHES[model_type](config),
    )


def _required(config: HfConfig, name: str) -> Any:
    value = config.get(name)
    if value is None:
        raise ValueError(f"the config has no {name}: the oracle does not guess it")
    return value


def _head_dim(config: HfConfig) -> int:
    head_dim = config.get("head_dim")
    if head_dim is not None:
        return int(head_dim)
    if config["model_type"] == "qwen3":
        raise ValueError("the config has no head_dim: in Qwen3 it does not follow from the other sizes")
    hidden_size, num_heads = _required(config, "hidden_size"), _required(config, "num_attention_heads")
    if hidden_size % num_heads:
        raise ValueError(
            f"the config has no head_dim, and hidden_size {hidden_size} is no multiple of {num_heads} heads"
        )
    return int(hidden_size // num_heads)


def _rope_theta(config: HfConfig) -> float:
    """Rotary base, from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise ValueError(f"rope type {rope_type!r}: the oracle computes only the default, unscaled rotary embedding")
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) not in (None, 1.0):
        raise ValueError("partial_rotary_factor is not 1: the oracle rotates whole heads only")
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise ValueError("the config has no rope_theta, neither at the top nor under rope_parameters")
    return float(theta)


def _refuse_sliding_window(config: HfConfig) -> None:
    layer_types = config.get("layer_types")
    if layer_types is not None:
        others = sorted(set(layer_types) - {"full_attention"})
        if others:
            raise ValueError(f"layer_types has {', '.join(others)}: the oracle computes only full_attention")
        return
    if config.get("use_sliding_window") and config.get("sliding_window") is not None:
        first, num_layers = config.get("max_window_layers", 0), _required(config, "num_hidden_layers")
        if first < num_layers:
            raise ValueError(
                f"sliding window of {config['sliding_window']} tokens from layer {first} of {num_layers}: "
                "the oracle computes only full attention"
            )

"""Configs by name: a tiny Qwen3 for every day, tiny ones of other families, and published ones.

Published values: the model cards' ``config.json``. heads x head_dim differs from hidden_size in Qwen3's 0.6B, 4B and
32B, and in the tiny configs too, so that code which divides hidden_size by the number of heads is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Literal

ModelType = Literal["qwen3", "qwen2", "llama", "mistral", "qwen3_moe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Rope:
    """Rotary scaling of rope type llama3; the names are those of transformers' ``rope_parameters``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSizes:
    """Experts of a Qwen3-MoE decoder; the names are those of transformers' ``Qwen3MoeConfig``."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool = True
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()

    def stand_in(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts instead of one MLP."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedConfig:
    """Shape of a decoder, and how its random weights are drawn; names are those of transformers' configs.

    Args:
        weight_std: Standard deviation of the seeded normal weights. The tiny configs take 0.2: at 0.02 a layout
            fault moves a log-prob by about 0.2 nats only, at 0.2 by 1 to 5.
        num_parameters: Published count without LoRA, to hold the built model against; 0 where none is published.
        model_type: The family.
        rope_scaling: Rope type llama3; None for plain rotary positions.
        attention_bias: Biases on all four projections; Qwen2 always has those of queries, keys and values.
        mlp_bias: Biases in the MLP.
        sliding_window: How many tokens a query sees, itself included; None for all so far.
        experts: The experts of a Qwen3-MoE decoder.

    Raises:
        ValueError: An option that the family does not have, or one that it needs.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool
    weight_std: float
    num_parameters: int = 0
    model_type: ModelType = "qwen3"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    rope_scaling: Llama3Rope | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    experts: ExpertSizes | None = None

    def __post_init__(self) -> None:
        for option, families in _FAMILIES_WITH.items():
            if getattr(self, option) and self.model_type not in families:
                raise ValueError(
                    f"{option} in a config of model_type {self.model_type}: only {', '.join(families)} has it"
                )
        if self.model_type == "qwen3_moe" and self.experts is None:
            raise ValueError("a config of model_type qwen3_moe without experts: give their number and sizes")


_FAMILIES_WITH: Mapping[str, tuple[ModelType, ...]] = {
    "attention_bias": ("qwen3", "llama", "qwen3_moe"),
    "mlp_bias": ("llama",),
    "sliding_window": ("mistral",),
    "experts": ("qwen3_moe",),
}


def _published(
    hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, tied: bool, count: int
) -> NamedConfig:
    return NamedConfig(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        tie_word_embeddings=tied,
        weight_std=0.02,
        num_parameters=count,
    )


_TINY = NamedConfig(
    vocab_size=257,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=False,
    weight_std=0.2,
)
SMALL = NamedConfig(
    vocab_size=2048,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    tie_word_embeddings=True,
    weight_std=0.05,
)
"""Large enough that a step on a CPU is made of matrix products rather than of calls, and small enough for a laptop."""
TINY_PREFIX = "tiny-"
TINY_CONFIGS: Mapping[str, NamedConfig] = MappingProxyType(
    {
        "tiny": _TINY,
        "tiny-qwen2": replace(_TINY, model_type="qwen2"),
        # The longest default cases run far beyond the original length: of 16 rotary planes the first 3 stay, the next
        # 3 are mixed, and 10 are slowed by the factor.
        "tiny-llama": replace(
            _TINY,
            model_type="llama",
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
            rope_theta=10_000.0,
            rope_scaling=Llama3Rope(
                factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128
            ),
        ),
        # Shorter than most branches: a window counted along the row instead of the path shows.
        "tiny-mistral": replace(_TINY, model_type="mistral", rope_theta=10_000.0, sliding_window=8),
        "tiny-qwen3-moe": replace(
            _TINY,
            model_type="qwen3_moe",
            experts=ExpertSizes(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32),
        ),
    }
)
"""Models on which everything is cheap."""


NAMED_CONFIGS: Mapping[str, NamedConfig] = MappingProxyType(
    {
        **TINY_CONFIGS,
        "small": SMALL,
        "qwen3-0.6b": _published(1024, 28, 16, 8, 3072, True, 596_049_920),
        "qwen3-1.7b": _published(2048, 28, 16, 8, 6144, True, 1_720_574_976),
        "qwen3-4b": _published(2560, 36, 32, 8, 9728, True, 4_022_468_096),
        "qwen3-8b": _published(4096, 36, 32, 8, 12288, False, 8_190_735_360),
        "qwen3-14b": _published(5120, 40, 40, 8, 17408, False, 14_768_307_200),
        "qwen3-32b": _published(5120, 64, 64, 8, 25600, False, 32_762_123_264),
        "llama-3.2-1b": NamedConfig(
            model_type="llama",
            vocab_size=128256,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
            rope_theta=500_000.0,
            rope_scaling=Llama3Rope(
                factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
            ),
            weight_std=0.02,
            num_parameters=1_235_814_400,
        ),
    }
)


def named_config(name: str) -> NamedConfig:
    """The config of that name, in any case.

    Raises:
        ValueError: Unknown name; the message lists the valid ones.
    """
    config = NAMED_CONFIGS.get(name.lower())
    if config is None:
        close = get_close_matches(name.lower(), NAMED_CONFIGS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(
            f"unknown model {name!r}{hint}: give one of {', '.join(NAMED_CONFIGS)}, the folder of a checkpoint, "
            "or a JSON file of a shape; or tiny-TYPE with a model type of transformers"
        )
    return config

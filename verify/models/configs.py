"""Configs by name: a tiny Qwen3 for every day, and the published Qwen3 family.

Published values: Qwen3 model cards' ``config.json``. heads x head_dim differs from hidden_size in 0.6B, 4B and 32B,
and in the tiny config too, so that code which divides hidden_size by the number of heads is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedConfig:
    """Shape of a Qwen3 decoder, and how its random weights are drawn.

    Args:
        weight_std: Standard deviation of the seeded normal weights. The tiny config takes 0.2: at 0.02 a layout
            fault moves a log-prob by about 0.2 nats only, at 0.2 by 1 to 5.
        num_parameters: Published count without LoRA, to hold the built model against; 0 where none is published.
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


NAMED_CONFIGS: Mapping[str, NamedConfig] = MappingProxyType(
    {
        "tiny": NamedConfig(
            vocab_size=257,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            tie_word_embeddings=False,
            weight_std=0.2,
        ),
        "qwen3-0.6b": _published(1024, 28, 16, 8, 3072, True, 596_049_920),
        "qwen3-1.7b": _published(2048, 28, 16, 8, 6144, True, 1_720_574_976),
        "qwen3-4b": _published(2560, 36, 32, 8, 9728, True, 4_022_468_096),
        "qwen3-8b": _published(4096, 36, 32, 8, 12288, False, 8_190_735_360),
        "qwen3-14b": _published(5120, 40, 40, 8, 17408, False, 14_768_307_200),
        "qwen3-32b": _published(5120, 64, 64, 8, 25600, False, 32_762_123_264),
    }
)


def named_config(name: str) -> NamedConfig:
    """The config of that name.

    Raises:
        ValueError: Unknown name; the message lists the valid ones.
    """
    config = NAMED_CONFIGS.get(name.lower())
    if config is None:
        close = get_close_matches(name.lower(), NAMED_CONFIGS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(
            f"unknown model {name!r}{hint}: give one of {', '.join(NAMED_CONFIGS)}, the folder of a checkpoint, "
            "or a JSON file of a shape"
        )
    return config

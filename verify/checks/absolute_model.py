"""A tiny decoder with absolute positions.

Rotary attention sees differences of positions within a path only, so a tree whose positions all start elsewhere
computes the same. Here a learned vector for each absolute position is added to the token embedding, as in GPT-2. It is
the tiny Qwen3 with that table rather than GPT-2 itself: transformers' GPT-2 refuses the block masks that its Qwen3
takes, and a subject that runs the model of the run can run this one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

from verify.models.configs import named_config
from verify.models.dtypes import dtype_of_weights
from verify.models.every_weight import train_every_weight
from verify.models.lora import LoraSpec, add_lora, rounded_normal
from verify.models.random_weights import build_random

_NUM_POSITIONS = 1024
_NUM_LAYERS = 1
_POSITION_STD = 0.2
"""That of the token embedding."""


class _PositionedModel(Qwen3Model):  # type: ignore[misc]
    """Qwen3 with a learned vector for each absolute position."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.position_table = nn.Embedding(_NUM_POSITIONS, config.hidden_size)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As Qwen3's, with ``table[position]`` added to every embedding."""
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = torch.arange(embedded.shape[1], device=embedded.device)[None]
        return super().forward(
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=embedded + self.position_table(position_ids),
            **kwargs,
        )


def absolute_model(dtype: str, seed: int, *, with_adapters: bool = True, tied: bool = False) -> Any:
    """Build the model on the CPU.

    Args:
        dtype: Name of the dtype.
        seed: Seed of weights and adapters.
        with_adapters: Whether it has adapters as the model of the run; else every weight is trained.
        tied: Whether its head is its embedding: a subject may take either for the head of a model of the run that is.

    Returns:
        A causal LM in eval mode, wrapped as the model of a run is.
    """
    config = replace(named_config("tiny"), tie_word_embeddings=tied)
    base = build_random(config, num_layers=_NUM_LAYERS, dtype=dtype_of_weights(dtype), seed=seed)
    positioned = _PositionedModel(base.config).to(dtype_of_weights(dtype))
    positioned.load_state_dict(base.model.state_dict(), strict=False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        table = positioned.position_table.weight
        table.copy_(rounded_normal(table.shape, _POSITION_STD, generator))
    base.model = positioned.requires_grad_(False)
    if tied:
        base.lm_head.weight = positioned.embed_tokens.weight
    if not with_adapters:
        return train_every_weight(base)
    return add_lora(base, LoraSpec(strength=0.3), seed=seed + 1)

"""Does the model still compute what it computed? A short forward whose bits are compared before and after a subject.

Weights and known settings are guarded one by one. A patched function, a swapped class or a changed scale is in no such
list, but it shows here. Otherwise whoever leaves it behind would be judged right and the subject after it wrong, or the
unpacked path itself would be changed and every budget with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verify.models.adapters import has_adapters

_NUM_TOKENS = 12
_ATTENTIONS = ("eager", "sdpa")


def model_bits(model: Any) -> tuple[Tensor, ...]:
    """Logits of a few fixed tokens, with adapters on and off where there are any, through both unpacked attentions.

    Whether autocast is on does not matter: it is a setting of those who ask, not of the model.

    Args:
        model: The model.

    Returns:
        One tensor per attention and adapter state; two calls on an unchanged model agree to the last bit.
    """
    embedding = model.get_input_embeddings()
    ids = (torch.arange(_NUM_TOKENS, device=embedding.weight.device) * 37 + 11) % embedding.num_embeddings
    before, bits = model.config._attn_implementation, []
    try:
        with torch.no_grad(), torch.autocast(embedding.weight.device.type, enabled=False):
            for attention in _ATTENTIONS:
                model.set_attn_implementation(attention)
                bits.append(model(input_ids=ids[None], use_cache=False).logits.clone())
                if not has_adapters(model):
                    continue
                with model.disable_adapter():
                    bits.append(model(input_ids=ids[None], use_cache=False).logits.clone())
    finally:
        model.set_attn_implementation(before)
    return tuple(bits)


def same_bits(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    """Whether both hold the same values, bit for bit."""
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))

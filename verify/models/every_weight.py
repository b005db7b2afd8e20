"""A policy that is trained in full: no adapters, and every weight requires grad."""

from __future__ import annotations

from typing import Any

from verify.models.vision import VISION_MODULES


def train_every_weight(model: Any) -> Any:
    """Let every weight of a model be trained; a tied embedding is one tensor.

    What sees images stays frozen: it has no gradient where a case has no image. The embedding forgets which token pads:
    torch drops the gradient of that row, also where the token is one of the text.

    Args:
        model: A transformers causal LM or sequence classifier without adapters.

    Returns:
        The model.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in VISION_MODULES for part in name.split(".")))
    model.get_input_embeddings().padding_idx = None
    return model

"""Names of weights in the files of a LLaVA checkpoint, and in the model that transformers builds today.

Files are written in older names, by transformers 5 too unless it is told otherwise: the decoder is a causal LM inside,
with a head of its own, and towers of CLIP and SigLIP were wrapped once more::

    language_model.model.layers.0.mlp.up_proj.weight     model.language_model.layers.0.mlp.up_proj.weight
    language_model.lm_head.weight                        lm_head.weight
    vision_tower.vision_model.post_layernorm.bias        model.vision_tower.post_layernorm.bias
    multi_modal_projector.linear_1.bias                  model.multi_modal_projector.linear_1.bias
"""

from __future__ import annotations

import re

_TODAY = (
    (re.compile(r"^language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^language_model\.model\."), "model.language_model."),
    (re.compile(r"^(vision_tower|multi_modal_projector)\."), r"model.\1."),
    (re.compile(r"^model\.vision_tower\.vision_model\."), "model.vision_tower."),
)
"""Applied one after another; a name of today is none of them."""


def name_in_model(saved: str) -> str:
    """The name in memory of a weight of a LLaVA checkpoint.

    Args:
        saved: Its name in a file.

    Returns:
        Its name in the model; a name that is of no older style as it is.
    """
    for older, today in _TODAY:
        saved = older.sub(today, saved)
    return saved

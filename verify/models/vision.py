"""Vision-language models of the kind of LLaVA: what they take as an image, and a tiny one of them.

The tiny one is a Qwen2 decoder behind a SigLIP tower, as LLaVA-Interleave. Its sizes are those of tiny-qwen2 and of a
tower that makes nine features of an image; kinds of layers, projector and the choice of features are as published
(llava-hf/llava-interleave-qwen-0.5b-hf).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    LlavaConfig,
    PreTrainedConfig,
    Qwen2Config,
    SiglipVisionConfig,
)

from verify.images import ImageFormat

VISION_FAMILIES = ("llava",)
"""Model types that see images."""
TOWERS = ("clip_vision_model", "siglip_vision_model")
"""Model types of the towers that make as many features of every image."""
TINY_WITH_IMAGES = "tiny-llava"
"""Name of the tiny model of them."""
VISION_TOWER = "vision_tower"
"""What the module is called that sees images."""
VISION_MODULES = (VISION_TOWER, "multi_modal_projector")
"""That, and what makes embeddings of its features."""


def tiny_llava_config(*, num_text_tokens: int, num_positions: int) -> LlavaConfig:
    """The config of the tiny model.

    Args:
        num_text_tokens: Size of the vocabulary without the placeholder of images, which comes behind it.
        num_positions: Positions of the decoder.

    Returns:
        The config.
    """
    text = Qwen2Config(
        vocab_size=num_text_tokens + 1,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=num_positions,
        use_sliding_window=False,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    )
    vision = SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=12,
        patch_size=4,
        vision_use_head=False,
    )
    return LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=num_text_tokens,
        image_seq_length=9,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )


def auto_class(config: PreTrainedConfig) -> Any:
    """The class of transformers that builds a model of a config."""
    return AutoModelForImageTextToText if image_token_id(config) is not None else AutoModelForCausalLM


def image_format(config: Any) -> ImageFormat | None:
    """What a model takes as an image, as its config says; None where it sees none.

    The number of features follows from the tower. ``image_seq_length`` enters no computation of transformers, and is
    its default of 576 in configs that were written without it, whatever the tower.
    """
    token_id = image_token_id(config)
    if token_id is None:
        return None
    size = int(config.vision_config.image_size)
    return ImageFormat((int(config.vision_config.num_channels), size, size), token_id, _num_features(config))


def _num_features(config: Any) -> int:
    """Features of an image: of each patch, and of CLIP's class token, unless the features chosen leave it out."""
    patches_a_side = int(config.vision_config.image_size) // int(config.vision_config.patch_size)
    of_class = int(config.vision_config.model_type == "clip_vision_model")
    return patches_a_side**2 + of_class - int(config.vision_feature_select_strategy == "default")


def check_image_config(config: Any) -> None:
    """Refuse a config of a model that sees images whose images could not be laid out; others pass.

    Raises:
        ValueError: An unknown tower, an image that is no square of whole patches or more, or a placeholder that is no
            token of the vocabulary, or has none of text below it.
    """
    token_id = image_token_id(config)
    if token_id is None:
        return
    vision, vocab_size = config.vision_config, int(config.get_text_config().vocab_size)
    if vision.model_type not in TOWERS:
        raise ValueError(f"vision tower of type {vision.model_type}: images are known to {' and '.join(TOWERS)}")
    size, patch = vision.image_size, vision.patch_size
    if not (isinstance(size, int) and isinstance(patch, int) and 1 <= patch <= size):
        raise ValueError(f"image_size {size} and patch_size {patch}: a square image of at least one patch is needed")
    if not 0 < token_id < vocab_size:
        raise ValueError(
            f"image_token_index {token_id}: the vocabulary has {vocab_size} tokens; the placeholder of images must be "
            "one of them, behind those of text"
        )


def see_once(model: Any) -> None:
    """Run the tower of a model that sees images on a blank one; others are left alone.

    Its first call hooks its layers for good. Later it would be a change that a subject left behind.

    Raises:
        ValueError: It makes another number of features than its config says.
    """
    if (taken := image_format(model.config)) is None:
        return
    with torch.no_grad():
        features = model.get_image_features(torch.zeros(1, *taken.shape, dtype=model.dtype)).pooler_output
    if len(features[0]) != taken.num_tokens:
        raise ValueError(f"{len(features[0])} features of an image; its config says {taken.num_tokens}")


def image_token_id(config: Any) -> int | None:
    """The token that stands for a feature of an image; None where the model sees no images."""
    return int(config.image_token_id) if config.model_type in VISION_FAMILIES else None


def num_text_tokens(config: Any, num_embeddings: int) -> int:
    """Rows of an embedding that are tokens of text: from the placeholder of images on there may be others."""
    placeholder = image_token_id(config)
    return num_embeddings if placeholder is None else min(num_embeddings, placeholder)

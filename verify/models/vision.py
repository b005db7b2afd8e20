"""A tiny vision-language model of the kind of LLaVA-Interleave: a Qwen2 decoder behind a SigLIP tower.

The sizes are those of tiny-qwen2 and of a tower that makes nine features of an image; kinds of layers, projector and
the choice of features are as published (llava-hf/llava-interleave-qwen-0.5b-hf).
"""

from __future__ import annotations

from typing import Any

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
"""Model types that see images, of those that can be asked for tiny."""
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
    """What a model takes as an image, as its config says; None where it sees none."""
    token_id = image_token_id(config)
    if token_id is None:
        return None
    size = int(config.vision_config.image_size)
    return ImageFormat((int(config.vision_config.num_channels), size, size), token_id, int(config.image_seq_length))


def image_token_id(config: Any) -> int | None:
    """The token that stands for a feature of an image; None where the model sees no images."""
    return int(config.image_token_id) if config.model_type in VISION_FAMILIES else None


def num_text_tokens(config: Any, num_embeddings: int) -> int:
    """Rows of an embedding that are tokens of text: from the placeholder of images on there may be others."""
    placeholder = image_token_id(config)
    return num_embeddings if placeholder is None else min(num_embeddings, placeholder)

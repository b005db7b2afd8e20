"""Images in prompts, as a model of the LLaVA kind takes them.

A vision tower and a projector make a fixed number of features of every image; each stands in the place of one
placeholder token of the prompt, in order (Liu et al. 2023, Visual Instruction Tuning).

Legend: I images, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Image(Protocol):
    """The pixel values of one image: any object with these attributes."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""

    @property
    def pixels(self) -> bytes:
        """float32, little-endian, in the order of ``shape``."""


def pixel_values(images: Sequence[Image], model: nn.Module) -> Tensor:
    """The images as one batch in the dtype of the model, on its device.

    Args:
        images: At least one, all of one shape.
        model: The model.

    Returns:
        [I, C, H, W].
    """
    weight = next(model.parameters())
    batch_ICHW = torch.stack(
        [torch.frombuffer(bytearray(image.pixels), dtype=torch.float32).reshape(image.shape) for image in images]
    )
    return batch_ICHW.to(weight.device, weight.dtype)


def tokens_per_image(config: Any) -> int:
    """Number of features that a model of the LLaVA kind makes of an image.

    One for each patch; CLIP's tower puts the token of its class in front, which the strategy "default" cuts off.

    Args:
        config: The config of the model.

    Returns:
        The number.
    """
    vision = config.vision_config
    num_patches = (vision.image_size // vision.patch_size) ** 2
    has_class_token = vision.model_type == "clip_vision_model"
    return int(num_patches + has_class_token - (config.vision_feature_select_strategy == "default"))


def check_images(
    images: Sequence[Image], prompt_ids: Sequence[int], completion_ids: Sequence[int], config: Any, where: str
) -> None:
    """Refuse images that the model does not take, or that do not fit the placeholders of their prompt.

    Args:
        images: The images of the prompt.
        prompt_ids: The prompt.
        completion_ids: The completion behind it.
        config: The config of the model; None where it has none, which takes no images.
        where: What messages call the sequence.

    Raises:
        ValueError: Images for a model without a vision tower, or another number of placeholders than of features.
    """
    if getattr(config, "vision_config", None) is None:
        if images:
            kind = getattr(config, "model_type", "without a config")
            raise ValueError(f"{where} has {len(images)} images: model type {kind} has no vision tower")
        return
    if config.model_type != "llava":
        if images:
            raise ValueError(f"{where} has images: only models of type llava are known, not {config.model_type}")
        return
    placeholder, each = config.image_token_id, tokens_per_image(config)
    in_prompt, in_completion = (list(ids).count(placeholder) for ids in (prompt_ids, completion_ids))
    if in_prompt != len(images) * each or in_completion:
        raise ValueError(
            f"{where} has {in_prompt} image tokens (id {placeholder}) in its prompt and {in_completion} in its "
            f"completion, and {len(images)} images: expected {len(images)} x {each} in the prompt, none behind it"
        )

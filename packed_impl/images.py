"""Images in packed rows: every distinct image passes the vision tower once, wherever its features are needed.

A placeholder of a prompt is exchanged for the number of the feature that takes its place, before prompts are laid out
in rows. So prompts of equal tokens but different images are different sequences, also to a prefix tree, and a layout
that repeats a prompt repeats the numbers. They lie below zero, where no token does: feature f is ``-1 - f``. Two groups
of one text with an image each that has two features, and the placeholder ``i``::

    a  i  i  b   with image 0      becomes   a -1 -2  b
    a  i  i  b   with image 1      becomes   a -3 -4  b

Shape letters: B rows, T slots of a row, I distinct images, F features of all of them, P placeholders, D model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from packed_impl.attention import pretrained_model
from packed_impl.groups import Group, Image, Mask, TokenIds, completions

_MODEL_TYPE = "llava"


@dataclass(frozen=True, slots=True)
class NumberedGroup:
    """A group in whose prompt the numbers of features stand in place of placeholders."""

    prompt_ids: TokenIds
    positives: tuple[TokenIds, ...]
    negatives: tuple[TokenIds, ...]
    completion_masks: tuple[Mask, ...]
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class Numbering:
    """The distinct images of a batch, and its groups with numbered features.

    Args:
        images: The images; feature j of image i has the number ``i * per_image + j``.
        per_image: Number of features of each.
        token_id: Their placeholder.
        groups: The groups.
    """

    images: tuple[Image, ...]
    per_image: int
    token_id: int
    groups: tuple[NumberedGroup, ...]


@dataclass(frozen=True, eq=False)
class PlacedImages:
    """The images of packed rows.

    Args:
        images: Each distinct one once.
        per_image: Number of features of each.
        features: Number of the feature that a slot holds, -1 where it holds a token; int64, [B, T].
    """

    images: tuple[Image, ...]
    per_image: int
    features: Tensor


def number_features(groups: Sequence[Group]) -> Numbering | None:
    """Exchange the placeholders of all prompts for numbers of features.

    Args:
        groups: Groups that can be packed.

    Returns:
        The numbering; None where no group has an image.

    Raises:
        ValueError: Images with several placeholders, prompts with another number of placeholders for an image than
            others, or a placeholder in a response.
    """
    index_of: dict[Image, int] = {}
    for group in groups:
        for image in group.images:
            index_of.setdefault(image, len(index_of))
    if not index_of:
        return None
    token_ids = {image.token_id for image in index_of}
    if len(token_ids) > 1:
        raise ValueError(
            f"images with the placeholders {sorted(token_ids)}: the images of a batch have one and the same"
        )
    (token_id,) = token_ids
    first = next(index for index, group in enumerate(groups) if group.images)
    per_image = groups[first].prompt_ids.count(token_id) // len(groups[first].images)
    for index, group in enumerate(groups):
        found = group.prompt_ids.count(token_id)
        if not per_image or found != per_image * len(group.images):
            raise ValueError(
                f"group {index} has {found} image tokens (id {token_id}) in its prompt for {len(group.images)} images: "
                f"expected {per_image or 'some'} for each, as in group {first}"
            )
        if any(token_id in response for response in completions(group)):
            raise ValueError(f"group {index} has image token {token_id} in a response: images stand in prompts only")
    return Numbering(
        tuple(index_of),
        per_image,
        token_id,
        tuple(
            NumberedGroup(
                _numbered(
                    group.prompt_ids, token_id, [index_of[image] * per_image for image in group.images], per_image
                ),
                group.positives,
                group.negatives,
                group.completion_masks,
            )
            for group in groups
        ),
    )


def _numbered(prompt_ids: TokenIds, token_id: int, firsts: Sequence[int], per_image: int) -> TokenIds:
    """The prompt with ``-1 - f`` for each placeholder; ``firsts`` are the first features of its images."""
    numbers = (-1 - first - place for first in firsts for place in range(per_image))
    return tuple(next(numbers) if token == token_id else token for token in prompt_ids)


def tokens_and_images(ids_BT: Tensor, numbering: Numbering | None) -> tuple[Tensor, PlacedImages | None]:
    """Put placeholders back where numbers of features stand.

    Args:
        ids_BT: Token ids, and numbers of features below zero.
        numbering: What they mean; None where there are none.

    Returns:
        Token ids, and the images.
    """
    if numbering is None:
        return ids_BT, None
    features_BT = (-1 - ids_BT).clamp(min=-1)
    input_ids_BT = ids_BT.masked_fill(ids_BT < 0, numbering.token_id)
    return input_ids_BT, PlacedImages(numbering.images, numbering.per_image, features_BT)


def image_kwargs(model: nn.Module, input_ids: Tensor, placed: PlacedImages | None) -> dict[str, object]:
    """Run the vision tower on the images of packed rows, and hand its features to the model call.

    Args:
        model: The model, wrapped or not.
        input_ids: Token ids of the rows, [B, T].
        placed: The images; None for none.

    Returns:
        What is added to the model call; nothing where there are no images.

    Raises:
        ValueError: Images for a model that takes none, placeholders that no image stands behind, or a model that makes
            another number of features of an image than it has placeholders.
    """
    outermost = pretrained_model(model)
    if outermost.config.model_type != _MODEL_TYPE:
        if placed is not None:
            raise ValueError(
                f"{len(placed.images)} images for model type {outermost.config.model_type}: packed rows with images "
                f"need a vision tower as type {_MODEL_TYPE} has it"
            )
        return {}
    is_placeholder_BT = input_ids == outermost.config.image_token_id
    held_BT = torch.zeros_like(is_placeholder_BT) if placed is None else placed.features >= 0
    if not torch.equal(is_placeholder_BT, held_BT):
        row, slot = (is_placeholder_BT != held_BT).nonzero()[0].tolist()
        raise ValueError(
            f"slot {slot} of row {row} holds token {int(input_ids[row, slot])} and "
            f"{'a' if held_BT[row, slot] else 'no'} feature of an image: the model's image token is "
            f"{outermost.config.image_token_id}, and each of them needs one"
        )
    if placed is None:
        return {}
    features_FD = _image_features(outermost, placed)
    picked_PD = features_FD[placed.features[held_BT].to(features_FD.device)]
    return {"mm_encoder_outputs": {"image": BaseModelOutputWithPooling(pooler_output=[picked_PD])}}


def _image_features(outermost: PreTrainedModel, placed: PlacedImages) -> Tensor:
    """Features of all images, in order; [F, D]."""
    pixels_ICHW = torch.stack(
        [torch.frombuffer(bytearray(each.pixels), dtype=torch.float32).reshape(each.shape) for each in placed.images]
    )
    features = outermost.get_image_features(pixels_ICHW.to(outermost.device, outermost.dtype)).pooler_output
    if wrong := [len(each) for each in features if len(each) != placed.per_image]:
        raise ValueError(
            f"{placed.per_image} image tokens for each image in the prompts: the model makes {wrong[0]} features of one"
        )
    return torch.cat(list(features))

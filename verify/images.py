"""An image in a prompt: its pixel values, and the token that stands in the prompt for each of its features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_BYTES = 4


@dataclass(frozen=True, slots=True)
class Image:
    """The pixel values of an image as a model's processor makes them.

    A model turns an image into so many features, each of which takes the place of one placeholder token of the prompt.
    Of two images with two features each, of which ``i`` is the placeholder::

        prompt     a  i  i  b  i  i  c
        features      1  1     2  2          of the first and of the second image

    Args:
        shape: Channels, height and width.
        pixels: float32, little-endian: row by row, one channel after another.
        token_id: The placeholder.

    Raises:
        ValueError: A shape without pixels, another number of bytes than it takes, or a negative token id.
    """

    shape: tuple[int, int, int]
    pixels: bytes = field(repr=False)
    token_id: int

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or any(size < 1 for size in self.shape):
            raise ValueError(f"image of shape {self.shape}: expected channels, height and width, all at least 1")
        if len(self.pixels) != _BYTES * math.prod(self.shape):
            raise ValueError(
                f"image of shape {self.shape}: {len(self.pixels)} bytes of pixels, expected "
                f"{_BYTES * math.prod(self.shape)} (float32)"
            )
        if isinstance(self.token_id, bool) or not isinstance(self.token_id, int) or self.token_id < 0:
            raise ValueError(f"placeholder {self.token_id!r} of an image: a token id is a non-negative integer")


def check_placeholders(
    images: Sequence[Image], prompt_ids: Sequence[int], completions: Sequence[Sequence[int]], where: str = ""
) -> None:
    """Refuse a prompt that its images do not fit into.

    Args:
        images: The images of the prompt, in the order in which they stand there; may be empty.
        prompt_ids: The prompt.
        completions: Its responses.
        where: Where the group comes from, for the message.

    Raises:
        ValueError: Several placeholders, a number of them that the images cannot share evenly, or one in a response.
    """
    kinds = sorted({image.token_id for image in images})
    if not kinds:
        return
    if len(kinds) > 1:
        raise ValueError(f"images with the placeholders {kinds}{where}: the images of a group have one and the same")
    num_places = sum(token == kinds[0] for token in prompt_ids)
    if num_places == 0 or num_places % len(images):
        raise ValueError(
            f"{num_places} image tokens (id {kinds[0]}) in the prompt for {len(images)} images{where}: expected as "
            "many for each"
        )
    for index, ids in enumerate(completions):
        if kinds[0] in ids:
            raise ValueError(f"image token {kinds[0]} in response {index}{where}: images stand in the prompt only")


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """What a model takes as an image.

    Args:
        shape: Channels, height and width.
        token_id: The placeholder.
        num_tokens: Placeholders of each image.
    """

    shape: tuple[int, int, int]
    token_id: int
    num_tokens: int


def check_format(images: Sequence[Image], prompt_ids: Sequence[int], taken: ImageFormat | None, where: str) -> None:
    """Refuse images that a model does not take.

    Args:
        images: The images of a prompt; may be empty.
        prompt_ids: The prompt.
        taken: What the model takes; None where it sees no images.
        where: Where the prompt stands, for the message.

    Raises:
        ValueError: Images for a model that sees none, of another shape or placeholder, or another number of
            placeholders than they take.
    """
    if taken is None:
        if images:
            raise ValueError(f"{where} has {len(images)} images: the model sees none; give one with a vision tower")
        return
    for index, image in enumerate(images):
        if (image.shape, image.token_id) != (taken.shape, taken.token_id):
            raise ValueError(
                f"{where}, image {index}: shape {image.shape} and placeholder {image.token_id}; the model takes "
                f"{taken.shape} and {taken.token_id}"
            )
    found, needed = list(prompt_ids).count(taken.token_id), taken.num_tokens * len(images)
    if found != needed:
        raise ValueError(
            f"{where} has {found} image tokens (id {taken.token_id}) for {len(images)} images: the model takes "
            f"{taken.num_tokens} for each, so {needed}"
        )

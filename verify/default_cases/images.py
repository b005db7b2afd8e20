"""Default cases with images in prompts, for models that see them."""

from __future__ import annotations

import math
import random
import struct

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds
from verify.images import Image, ImageFormat

SHOWS_MOST = "equal-text-other-images"
"""The case on which every planted fault of images bites: it stands for all of them where a pass takes seconds."""


def image_cases(vocab_size: int, seed: int, images: ImageFormat) -> tuple[Case, ...]:
    """Cases with images; token ids and pixels have a generator of their own, so that other cases stay as they are.

    Args:
        vocab_size: Token ids of text are drawn from [0, vocab_size).
        seed: Seed of ids and pixels.
        images: What the model takes.

    Returns:
        Cases with stable names, in a fixed order.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    def image() -> Image:
        # Multiples of 1/64 up to 2 in size: bfloat16 represents them, so that every dtype sees the same image.
        values = [rng.randint(-128, 128) / 64 for _ in range(math.prod(images.shape))]
        return Image(images.shape, struct.pack(f"<{len(values)}f", *values), images.token_id)

    seen = (images.token_id,) * images.num_tokens
    before, behind = tokens(4), tokens(6)
    text = (*before, *seen, *behind)
    first, second = image(), image()
    answer, other_answer = tokens(7), tokens(4)
    return (
        Case(
            name="pair-with-image",
            why="an image in the middle of the prompt",
            groups=(PreferenceGroup((*tokens(5), *seen, *tokens(3)), (tokens(6),), (tokens(9),), images=(image(),)),),
        ),
        Case(
            name="equal-text-other-images",
            why="which of two responses is preferred depends on the image alone: what is known by tokens is mixed up",
            groups=(
                PreferenceGroup(text, (answer,), (other_answer,), images=(first,)),
                PreferenceGroup(text, (other_answer,), (answer,), images=(second,)),
            ),
        ),
        Case(
            name="group-with-two-images",
            why="three branches of a prompt with two images, and a group that shows them in the other order",
            groups=(
                PreferenceGroup(
                    (*tokens(2), *seen, *tokens(3), *seen, *behind), (tokens(5), tokens(8)), (tokens(6),),
                    images=(first, second),
                ),
                PreferenceGroup((*seen, *seen, *behind), (tokens(4),), (tokens(2), tokens(5)), images=(second, first)),
            ),
        ),
        Case(
            name="image-beside-text",
            why="of three groups in a row the second one has no image",
            groups=(
                PreferenceGroup((*before, *seen), (tokens(5),), (tokens(7),), images=(first,)),
                PreferenceGroup(tokens(12), (tokens(6),), (tokens(3),)),
                PreferenceGroup((*seen, *tokens(4)), (tokens(2),), (tokens(9),), images=(second,)),
            ),
        ),
        Case(
            name="examples-with-images",
            why="supervised examples: two answers to one image, one to another, and one to text alone",
            groups=(
                PreferenceGroup(text, (tokens(6), tokens(3)), images=(second,)),
                PreferenceGroup(text, (tokens(5),), images=(first,)),
                PreferenceGroup(tokens(7), (tokens(4),)),
            ),
            objective_name="sft-token-mean",
        ),
    )  # fmt: skip

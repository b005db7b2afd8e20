"""What a preference group is to this package, and the one check that it can be packed.

Shape letters: C completion tokens of all groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

TokenIds = tuple[int, ...]
Mask = tuple[bool, ...]


class Image(Protocol):
    """The pixel values of an image in a prompt: any hashable object with these attributes; equal ones are one image."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        ...

    @property
    def pixels(self) -> bytes:
        """float32, little-endian, in the order of ``shape``."""
        ...

    @property
    def token_id(self) -> int:
        """The token that stands in the prompt for each of its features."""
        ...


class Group(Protocol):
    """One prompt with m preferred and n rejected responses, as token ids; an SFT example is 1+0."""

    @property
    def prompt_ids(self) -> TokenIds:
        """The prompt; at least one token, because the first response token needs a predictor."""
        ...

    @property
    def positives(self) -> tuple[TokenIds, ...]:
        """The preferred responses; at least one."""
        ...

    @property
    def negatives(self) -> tuple[TokenIds, ...]:
        """The rejected responses; may be empty."""
        ...

    @property
    def completion_masks(self) -> tuple[Mask, ...]:
        """Which tokens of each response are supervised, positives first; ``()`` where all of them are."""
        ...

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of the prompt, in the order in which their placeholders stand in it; ``()`` for text alone."""
        ...


def completions(group: Group) -> tuple[TokenIds, ...]:
    """The responses in the order used everywhere: positives before negatives."""
    return (*group.positives, *group.negatives)


def masked_completions(group: Group) -> list[tuple[TokenIds, Mask]]:
    """Each response with its mask, which is spelt out where the group leaves it out."""
    responses = completions(group)
    masks = group.completion_masks or tuple((True,) * len(response) for response in responses)
    return list(zip(responses, masks, strict=True))


def completion_name(groups: Sequence[Group], completion: int) -> str:
    """Where a completion is, as ``group 2, negatives[0]``.

    Args:
        groups: The batch.
        completion: Its number in the standard order.

    Returns:
        The name.
    """
    names = [
        f"group {index}, {side}[{place}]"
        for index, group in enumerate(groups)
        for side, responses in (("positives", group.positives), ("negatives", group.negatives))
        for place in range(len(responses))
    ]
    return names[completion]


def group_sizes(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """Number of positives and of negatives of each group."""
    return [(len(group.positives), len(group.negatives)) for group in groups]


def check_negatives(groups: Sequence[Group], objective: str) -> None:
    """Refuse groups that have nothing to prefer their positives to.

    Args:
        groups: Any groups.
        objective: Who asks, for the message.

    Raises:
        ValueError: A group without a negative.
    """
    for index, group in enumerate(groups):
        if not group.negatives:
            raise ValueError(f"group {index} has no negative response: {objective} needs one at least")


def check_groups(groups: Sequence[Group]) -> None:
    """Refuse what cannot be packed.

    Args:
        groups: Any groups.

    Raises:
        ValueError: No group, an empty prompt or response, no positive, or masks that do not fit the responses; the
            message names the group.
    """
    if not groups:
        raise ValueError("no group to pack: at least one is needed")
    for index, group in enumerate(groups):
        if not group.prompt_ids:
            raise ValueError(f"group {index} has an empty prompt: the first response token needs a predictor")
        if not group.positives:
            raise ValueError(f"group {index} has no positive response: at least one is needed")
        for name, responses in (("positives", group.positives), ("negatives", group.negatives)):
            for place, response in enumerate(responses):
                if not response:
                    raise ValueError(
                        f"group {index} has an empty response {name}[{place}]: at least one token is needed"
                    )
        if group.completion_masks:
            _check_masks(index, group)


def _check_masks(index: int, group: Group) -> None:
    responses, masks = completions(group), group.completion_masks
    if len(masks) != len(responses):
        raise ValueError(
            f"group {index} has {len(masks)} completion_masks for {len(responses)} responses: expected one each or none"
        )
    for place, (mask, response) in enumerate(zip(masks, responses, strict=True)):
        where = f"group {index}, completion_masks[{place}]"
        if len(mask) != len(response):
            raise ValueError(f"{where} has {len(mask)} values for {len(response)} tokens: expected one each")
        if kinds := set(map(type, mask)) - {bool}:
            raise ValueError(f"{where} holds {', '.join(sorted(kind.__name__ for kind in kinds))}: expected only bool")
        if not any(mask):
            raise ValueError(f"{where} is False throughout: at least one token has to be supervised")


def supervised_tokens(groups: Sequence[Group]) -> Tensor:
    """Which completion tokens are supervised, in the standard order; bool, [C]."""
    lengths = [sum(map(len, completions(group))) for group in groups]
    supervised_C = torch.ones(sum(lengths), dtype=torch.bool)
    stop = 0
    for group, length in zip(groups, lengths, strict=True):
        stop += length
        if group.completion_masks:
            values = list(chain.from_iterable(group.completion_masks))
            supervised_C[stop - length : stop] = torch.tensor(values)
    return supervised_C

"""The shape of training data as the oracle reads it, and the one order of completions.

One shape for every kind of data: a pair is one positive and one negative completion, a preference group is m of the one
and n of the other, an SFT example is one positive and no negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reference_impl.images import Image


class Group(Protocol):
    """One prompt with its preferred and rejected completions: any object with these attributes."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Token ids of the prompt, at least one."""

    @property
    def positives(self) -> Sequence[Sequence[int]]:
        """Token ids of each preferred completion."""

    @property
    def negatives(self) -> Sequence[Sequence[int]]:
        """Token ids of each rejected completion."""

    @property
    def completion_masks(self) -> Sequence[Sequence[bool]]:
        """Per completion, positives first, which of its tokens are supervised; empty where every token is."""

    @property
    def images(self) -> Sequence[Image]:
        """The images of the prompt, in the order in which they stand in it; empty where it is text alone."""


@dataclass(frozen=True, slots=True)
class UnpackedSequence:
    """A prompt followed by one of its completions: what is fed to a model that packs nothing.

    Args:
        prompt_ids: Token ids of the prompt, at least one.
        completion_ids: Token ids of the completion, at least one.
        completion_mask: Which completion tokens are supervised, at least one; None where every token is.
        images: The images of the prompt, in the order in which they stand in it.

    Raises:
        ValueError: An empty prompt, an empty completion, or a mask that does not fit the completion.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    completion_mask: tuple[bool, ...] | None = None
    images: tuple[Image, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("empty prompt: the first completion token needs a predictor")
        if not self.completion_ids:
            raise ValueError("empty completion: there is no token to give a log-prob to")
        if self.completion_mask is not None:
            _check_mask(self.completion_mask, len(self.completion_ids))

    @property
    def ids(self) -> tuple[int, ...]:
        """The whole sequence, prompt first."""
        return self.prompt_ids + self.completion_ids

    @property
    def predictors(self) -> range:
        """The place in the sequence whose logits predict each completion token.

        Three prompt and two completion tokens, ``x0 x1 x2 y0 y1``: y0 is predicted at place 2, y1 at place 3.
        """
        return range(len(self.prompt_ids) - 1, len(self.ids) - 1)

    @property
    def supervised(self) -> tuple[int, ...]:
        """The places in the completion whose tokens count: of ``y0 y1 y2`` under ``True False True`` 0 and 2."""
        if self.completion_mask is None:
            return tuple(range(len(self.completion_ids)))
        return tuple(place for place, counts in enumerate(self.completion_mask) if counts)


def _check_mask(mask: tuple[bool, ...], num_tokens: int) -> None:
    num_true = sum(value is True for value in mask)
    num_false = sum(value is False for value in mask)
    if len(mask) != num_tokens or num_true + num_false != num_tokens or num_true == 0:
        raise ValueError(
            f"completion mask of {len(mask)} values ({num_true} True, {num_false} False) for {num_tokens} tokens: "
            "expected one bool per token, at least one of them True"
        )


def unpack(groups: Sequence[Group]) -> list[UnpackedSequence]:
    """List every completion behind its own copy of the prompt: group by group, positives before negatives.

    Args:
        groups: The groups; at least one.

    Returns:
        One sequence per completion.

    Raises:
        ValueError: No group, a group without a completion or with masks for another number of completions, an empty
            prompt, an empty completion, or a mask that does not fit its completion.
    """
    if not groups:
        raise ValueError("no groups: at least one is needed")
    sequences: list[UnpackedSequence] = []
    for index, group in enumerate(groups):
        completions = (*group.positives, *group.negatives)
        if not completions:
            raise ValueError(f"group {index} has no completion: at least one is needed")
        masks: Sequence[Sequence[bool] | None] = group.completion_masks or [None] * len(completions)
        if len(masks) != len(completions):
            raise ValueError(f"group {index} has {len(masks)} completion masks for {len(completions)} completions")
        for place, (completion, mask) in enumerate(zip(completions, masks, strict=True)):
            try:
                completion_mask = None if mask is None else tuple(mask)
                sequences.append(
                    UnpackedSequence(
                        tuple(group.prompt_ids), tuple(completion), completion_mask, images=tuple(group.images)
                    )
                )
            except ValueError as error:
                raise ValueError(f"group {index}, completion {place}: {error}") from error
    return sequences

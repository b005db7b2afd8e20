"""The shape of preference data as the oracle reads it, and the one order of completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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


@dataclass(frozen=True, slots=True)
class UnpackedSequence:
    """A prompt followed by one of its completions: what is fed to a model that packs nothing.

    Args:
        prompt_ids: Token ids of the prompt, at least one.
        completion_ids: Token ids of the completion, at least one.

    Raises:
        ValueError: An empty prompt or an empty completion.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("empty prompt: the first completion token needs a predictor")
        if not self.completion_ids:
            raise ValueError("empty completion: there is no token to give a log-prob to")

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


def unpack(groups: Sequence[Group]) -> list[UnpackedSequence]:
    """List every completion behind its own copy of the prompt: group by group, positives before negatives.

    Args:
        groups: The preference groups; at least one.

    Returns:
        One sequence per completion.

    Raises:
        ValueError: No group, a group without a completion, an empty prompt or an empty completion.
    """
    if not groups:
        raise ValueError("no groups: at least one preference group is needed")
    sequences: list[UnpackedSequence] = []
    for index, group in enumerate(groups):
        completions = (*group.positives, *group.negatives)
        if not completions:
            raise ValueError(f"group {index} has no completion: at least one is needed")
        for place, completion in enumerate(completions):
            try:
                sequences.append(UnpackedSequence(tuple(group.prompt_ids), tuple(completion)))
            except ValueError as error:
                raise ValueError(f"group {index}, completion {place}: {error}") from error
    return sequences

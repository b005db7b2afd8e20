"""The unit of preference data: one prompt and its responses, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from verify.images import Image, check_placeholders

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PreferenceGroup:
    """One prompt with m preferred and n rejected responses (a DPO pair is 1+1, an SFT example 1+0).

    Of a conversation with several supervised turns the prompt is what comes before the first of them; the rest is its
    completion, with the turns of others masked out::

        prompt      user: a b
        completion  assistant: c d   user: e   assistant: f
        mask                   T T         F              T

    Args:
        prompt_ids: Token ids of the prompt; at least one, because the first response token needs a predictor.
        positives: Token ids of each preferred response; at least one response, none of them empty.
        negatives: Token ids of each rejected response; may be empty, but holds no empty response.
        source: Where the group came from (``file:line``), or "" for a constructed one.
        completion_masks: Which tokens of each response are supervised, in the order of ``completions``; ``()`` where
            all of them are.
        images: The images of the prompt, in the order in which their placeholders stand in it.

    Raises:
        ValueError: An empty prompt, an empty response, no positive, a negative token id, masks that do not fit the
            responses, or images that do not fit the prompt.
    """

    prompt_ids: TokenIds
    positives: tuple[TokenIds, ...]
    negatives: tuple[TokenIds, ...] = ()
    source: str = field(default="", compare=False)
    completion_masks: tuple[tuple[bool, ...], ...] = ()
    images: tuple[Image, ...] = ()

    def __post_init__(self) -> None:
        where = f" ({self.source})" if self.source else ""
        if not self.prompt_ids:
            raise ValueError(f"empty prompt{where}: a group needs at least one prompt token")
        if not self.positives:
            raise ValueError(f"no positive response{where}: a group needs at least one")
        for name, responses in (("positives", self.positives), ("negatives", self.negatives)):
            for index, response in enumerate(responses):
                if not response:
                    raise ValueError(f"empty response {name}[{index}]{where}: a response needs at least one token")
        for token_id in (t for ids in (self.prompt_ids, *self.positives, *self.negatives) for t in ids):
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise ValueError(f"token id {token_id!r}{where}: token ids are non-negative integers")
        if self.completion_masks:
            self._check_masks(where)
        check_placeholders(self.images, self.prompt_ids, self.completions, where)

    def _check_masks(self, where: str) -> None:
        if len(self.completion_masks) != len(self.completions):
            raise ValueError(
                f"{len(self.completion_masks)} completion masks for {len(self.completions)} responses{where}: give one "
                "for each, or none"
            )
        for index, (mask, ids) in enumerate(zip(self.completion_masks, self.completions, strict=True)):
            if len(mask) != len(ids):
                raise ValueError(f"completion_masks[{index}]{where}: {len(mask)} values for {len(ids)} tokens")
            if not all(isinstance(value, bool) for value in mask):
                raise ValueError(f"completion_masks[{index}]{where}: values other than True and False")
            if not any(mask):
                raise ValueError(f"completion_masks[{index}]{where}: no token of the response is supervised")

    @property
    def completions(self) -> tuple[TokenIds, ...]:
        """The responses in the order used everywhere: positives before negatives."""
        return self.positives + self.negatives

    @property
    def supervised(self) -> tuple[tuple[int, ...], ...]:
        """Places of the supervised tokens of each completion."""
        masks = self.completion_masks or tuple((True,) * len(ids) for ids in self.completions)
        return tuple(tuple(place for place, counts in enumerate(mask) if counts) for mask in masks)

    @property
    def num_supervised(self) -> tuple[int, ...]:
        """Number of supervised tokens of each completion."""
        if not self.completion_masks:
            return tuple(map(len, self.completions))
        return tuple(map(sum, self.completion_masks))

    @property
    def is_pair(self) -> bool:
        """Whether it is one preferred and one rejected response."""
        return len(self.positives) == len(self.negatives) == 1


def tokens_taking_part(groups: Sequence[PreferenceGroup], *, is_reward_model: bool) -> frozenset[int]:
    """The tokens that something supervised stands behind: all others are fed for nothing, or not at all.

    With prompt ``a b``, response ``c d`` and both of its tokens supervised these are a, b and c: d predicts nothing.

    Args:
        groups: The groups of a case.
        is_reward_model: The reward is read at the last token of a response, which takes part then.

    Returns:
        Token ids.
    """
    found: set[int] = set()
    for group in groups:
        found.update(group.prompt_ids)
        for ids, places in zip(group.completions, group.supervised, strict=True):
            found.update(ids if is_reward_model else ids[: places[-1]])
    return frozenset(found)


def check_token_ids(groups: Sequence[PreferenceGroup], vocab_size: int) -> None:
    """Refuse token ids that the model has no embedding for.

    Args:
        groups: The groups to check.
        vocab_size: Number of rows of the embedding.

    Raises:
        ValueError: A token id at or above ``vocab_size``; the message says where.
    """
    for index, group in enumerate(groups):
        parts = [("prompt_ids", group.prompt_ids)]
        parts += [(f"positives[{i}]", ids) for i, ids in enumerate(group.positives)]
        parts += [(f"negatives[{i}]", ids) for i, ids in enumerate(group.negatives)]
        for part, ids in parts:
            for place, token_id in enumerate(ids):
                if token_id >= vocab_size:
                    where = group.source or f"group {index}"
                    raise ValueError(
                        f"token id {token_id} at {where}, {part}[{place}]: "
                        f"outside the vocabulary of {vocab_size} tokens"
                    )

"""The unit of preference data: one prompt and its responses, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PreferenceGroup:
    """One prompt with m preferred and n rejected responses (a DPO pair is 1+1, an SFT example 1+0).

    Args:
        prompt_ids: Token ids of the prompt; at least one, because the first response token needs a predictor.
        positives: Token ids of each preferred response; at least one response, none of them empty.
        negatives: Token ids of each rejected response; may be empty, but holds no empty response.
        source: Where the group came from (``file:line``), or "" for a constructed one.

    Raises:
        ValueError: An empty prompt, an empty response, no positive, or a negative token id.
    """

    prompt_ids: TokenIds
    positives: tuple[TokenIds, ...]
    negatives: tuple[TokenIds, ...] = ()
    source: str = field(default="", compare=False)

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

    @property
    def completions(self) -> tuple[TokenIds, ...]:
        """The responses in the order used everywhere: positives before negatives."""
        return self.positives + self.negatives


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

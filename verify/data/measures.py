"""How long prompt and responses are: in characters, in tokens estimated from them, or in the tokens of a tokenizer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.data.pairs import PreferencePair, PromptAndResponses, Turns, as_group, has_repeats
from verify.data.rows import DataError
from verify.data.survey import GroupSizes
from verify.data.violations import Reason, Remark, UnusableRow
from verify.groups import PreferenceGroup, check_token_ids
from verify.packing_plan.prefix_trees import TokenGroup

if TYPE_CHECKING:
    from verify.data.tokenise import ChatTokenizer

_TAIL = 3
"""The end token may be followed by a line break or two, which the template writes after each turn."""


@dataclass(frozen=True, slots=True)
class CharacterMeasure:
    """Characters of the texts alone; a chat template's are not counted.

    Args:
        per_token: Characters that are taken for one token; None to count characters.

    Raises:
        DataError: Characters per token that are not positive.
    """

    per_token: float | None = None

    def __post_init__(self) -> None:
        if self.per_token is not None and not self.per_token > 0:
            raise DataError(f"{self.per_token} characters per token: expected a number above 0")

    @property
    def unit(self) -> str:
        """Characters, or tokens."""
        return "characters" if self.per_token is None else "tokens"

    @property
    def rows_at_a_time(self) -> int:
        """Few: what is measured together is kept in memory until then."""
        return 64

    def sizes(self, rows: Sequence[PromptAndResponses]) -> list[GroupSizes | UnusableRow]:
        """The lengths of each row."""
        return [self._pair_sizes(row) if isinstance(row, PreferencePair) else self._group_sizes(row) for row in rows]

    def _pair_sizes(self, pair: PreferencePair) -> GroupSizes | UnusableRow:
        """What `_group_sizes` gives for a pair of turns, which is what most files hold, in half the time."""
        prompt, chosen, rejected, place = pair
        if chosen == rejected:
            return UnusableRow(Reason.IDENTICAL_RESPONSES, place, "chosen and rejected are the same text")
        in_prompt, in_chosen, in_rejected = _characters(prompt), _characters(chosen), _characters(rejected)
        if self.per_token is not None:
            in_prompt, in_chosen, in_rejected = map(self._tokens, (in_prompt, in_chosen, in_rejected))
        return GroupSizes(in_prompt, (in_chosen,), (in_rejected,))

    def _group_sizes(self, row: PromptAndResponses) -> GroupSizes | UnusableRow:
        group = as_group(row)
        if (same := group.on_both_sides(group.chosen, group.rejected)) is not None:
            return UnusableRow(Reason.IDENTICAL_RESPONSES, group.place, f"{' and '.join(same)} are the same text")
        prompt = _characters(group.prompt)
        chosen, rejected = (tuple(map(_characters, side)) for side in (group.chosen, group.rejected))
        if self.per_token is not None:
            prompt = self._tokens(prompt)
            chosen, rejected = (tuple(map(self._tokens, side)) for side in (chosen, rejected))
        return GroupSizes(prompt, chosen, rejected, _remarks(group.chosen, group.rejected))

    def _tokens(self, characters: int) -> int:
        return max(1, round(characters / (self.per_token or 1)))


def _characters(text: Turns | str) -> int:
    if isinstance(text, str):
        return len(text)
    characters = 0
    for _, content in text:  # runs three times for each row of a file, and sum() takes twice as long
        characters += len(content)
    return characters


@dataclass(frozen=True, slots=True)
class TokenMeasure:
    """Tokens, through the chat template as in training.

    Args:
        tokenizer: The tokenizer.
        vocab_size: Rows of the model's embedding; every token id has to be below.
    """

    tokenizer: ChatTokenizer
    vocab_size: int

    @property
    def unit(self) -> str:
        """Tokens."""
        return "tokens"

    @property
    def rows_at_a_time(self) -> int:
        """Enough for the tokenizer's threads."""
        return 256

    def sizes(self, rows: Sequence[PromptAndResponses]) -> list[GroupSizes | UnusableRow]:
        """The lengths of each row, or why its responses do not share the prompt's tokens."""
        from verify.data.tokenise import encode_groups, end_token_ids

        end_ids = end_token_ids(self.tokenizer)
        result: list[GroupSizes | UnusableRow] = []
        for group in encode_groups(self.tokenizer, rows):
            if isinstance(group, UnusableRow):
                result.append(group)
                continue
            if max(map(max, (group.prompt_ids, *group.completions))) >= self.vocab_size:
                _refuse(group, self.vocab_size)
            ends = all(not end_ids.isdisjoint(ids[-_TAIL:]) for ids in group.completions)
            chosen, rejected = (tuple(map(len, side)) for side in (group.positives, group.negatives))
            odd = () if ends else (Remark.MISSING_END_TOKEN,)
            remarks = (*odd, *_remarks(group.positives, group.negatives))
            tokens = TokenGroup.of(group.prompt_ids, group.completions)
            result.append(GroupSizes(len(group.prompt_ids), chosen, rejected, remarks, tokens))
        return result


def _remarks(chosen: Sequence[Hashable], rejected: Sequence[Hashable]) -> tuple[Remark, ...]:
    return (Remark.REPEATED_RESPONSE,) if has_repeats(chosen, rejected) else ()


def _refuse(group: PreferenceGroup, vocab_size: int) -> None:
    try:
        check_token_ids((group,), vocab_size)
    except ValueError as error:
        raise DataError(
            f"{error}; the tokenizer does not belong to this model: choose the model that belongs to it (--model)"
        ) from error

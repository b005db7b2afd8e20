"""How long a pair is: in characters, in tokens estimated from them, or in the tokens of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.data.pairs import Pair, TextPair, Turns
from verify.data.rows import DataError
from verify.data.survey import PairSizes
from verify.data.violations import Reason, Remark, UnusableRow
from verify.groups import PreferenceGroup, check_token_ids

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
    def pairs_at_a_time(self) -> int:
        """One: what is measured at once need not be kept in memory."""
        return 1

    def sizes(self, pairs: Sequence[Pair]) -> list[PairSizes | UnusableRow]:
        """The lengths of each pair."""
        return [self._sizes(pair) for pair in pairs]

    def _sizes(self, pair: Pair) -> PairSizes | UnusableRow:
        if pair.chosen == pair.rejected:
            detail = "both responses are the same text"
            return UnusableRow(Reason.IDENTICAL_RESPONSES, pair.place, detail)
        if isinstance(pair, TextPair):
            lengths = len(pair.prompt), len(pair.chosen), len(pair.rejected)
        else:
            lengths = _characters(pair.prompt), _characters(pair.chosen), _characters(pair.rejected)
        if self.per_token is None:
            return PairSizes(*lengths)
        prompt, chosen, rejected = (max(1, round(length / self.per_token)) for length in lengths)
        return PairSizes(prompt, chosen, rejected)


def _characters(turns: Turns) -> int:
    return len(turns[0].content) if len(turns) == 1 else sum([len(turn.content) for turn in turns])


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
    def pairs_at_a_time(self) -> int:
        """Enough for the tokenizer's threads."""
        return 256

    def sizes(self, pairs: Sequence[Pair]) -> list[PairSizes | UnusableRow]:
        """The lengths of each pair, or why the two sides do not share the prompt's tokens."""
        from verify.data.tokenise import encode_pairs, end_token_ids

        end_ids = end_token_ids(self.tokenizer)
        result: list[PairSizes | UnusableRow] = []
        for group in encode_pairs(self.tokenizer, pairs):
            if isinstance(group, UnusableRow):
                result.append(group)
                continue
            if max(map(max, (group.prompt_ids, *group.completions))) >= self.vocab_size:
                _refuse(group, self.vocab_size)
            ends = all(not end_ids.isdisjoint(ids[-_TAIL:]) for ids in group.completions)
            chosen, rejected = group.completions
            remarks = () if ends else (Remark.MISSING_END_TOKEN,)
            result.append(PairSizes(len(group.prompt_ids), len(chosen), len(rejected), remarks))
        return result


def _refuse(group: PreferenceGroup, vocab_size: int) -> None:
    try:
        check_token_ids((group,), vocab_size)
    except ValueError as error:
        raise DataError(
            f"{error}; the tokenizer does not belong to this model: choose the model that belongs to it (--model)"
        ) from error

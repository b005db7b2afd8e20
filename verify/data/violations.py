"""Rows that no shared-prompt layout can represent: counted and named, never dropped in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from verify.data.rows import Place


class NamedMeaning(StrEnum):
    """Names that reports show, each with what it means."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        """A member of that name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member


class Reason(NamedMeaning):
    """Why a row is not used."""

    DIFFERENT_PROMPTS = (
        "different_prompts",
        "Chosen and rejected part before an assistant's turn: they answer different prompts",
    )
    EMPTY_PROMPT = (
        "empty_prompt",
        "No turn, or no text, before the responses: the first response token would have no predictor",
    )
    EMPTY_RESPONSE = (
        "empty_response",
        "A side without a turn, text or token of its own",
    )
    IDENTICAL_RESPONSES = (
        "identical_responses",
        "One response is both chosen and rejected: that margin is zero whatever the layout does",
    )
    NO_FINAL_ASSISTANT_TURN = (
        "no_final_assistant_turn",
        "A side ends with a turn that is not the assistant's: there is no response to score",
    )
    PREFILLED_PROMPT = (
        "prefilled_prompt",
        "The shared turns end with an assistant's: the response would continue it, without a generation prompt",
    )
    PROMPT_COLUMN_DIFFERS = (
        "prompt_column_differs",
        "The prompt column is not what the conversations share",
    )
    TURN_NOT_TEXT = (
        "turn_not_text",
        "A turn is more than a role and a text (tool call, image part, null)",
    )
    HALF_A_CHARACTER = (
        "half_a_character",
        "A text holds half a surrogate pair, which JSON can spell but no tokenizer takes",
    )
    TEMPLATE_REFUSES = (
        "template_refuses",
        "The chat template raises on these turns",
    )
    TEMPLATE_REWRITES_PROMPT = (
        "template_rewrites_prompt",
        "The rendered prompt is not the beginning of the rendered conversation",
    )
    SEAM_MERGE = (
        "seam_merge",
        "The texts agree, but a token spans the end of the prompt: each side implies other prompt tokens",
    )
    DOUBLED_BOS = (
        "doubled_bos",
        "Plain text that already begins with the token that the tokenizer puts in front",
    )
    TRUNCATED = (
        "truncated",
        "A sequence is longer than the trainer lets through: cut, the two sides may keep different prompts",
    )
    OVER_MAX_TOKENS = (
        "over_max_tokens",
        "More tokens than were asked for; nothing is ever truncated",
    )


class Remark(NamedMeaning):
    """What is odd about a row that can be packed all the same."""

    MISSING_END_TOKEN = (
        "missing_end_token",
        "No special token among the last three of a response: the model does not learn to stop there",
    )
    REPEATED_RESPONSE = (
        "repeated_response",
        "A side holds one response several times: it is computed, and weighs in the loss, as often",
    )


@dataclass(frozen=True, slots=True)
class Violation:
    """One unusable row: why, where, and what was found there."""

    reason: Reason
    place: Place
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}: {self.detail}"


class UnusableRow(ValueError):  # noqa: N818 - raised to leave a row, not the file
    """Carries the violation out of the code that found it.

    Args:
        reason: Why the row cannot be used.
        place: Where the row stands.
        detail: What was found, in a few words.
    """

    def __init__(self, reason: Reason, place: Place, detail: str) -> None:
        self.violation = Violation(reason, place, detail)
        super().__init__(str(self.violation))


def count_reasons(violations: Iterable[Violation]) -> dict[Reason, int]:
    """How many rows each reason cost, in the order of `Reason`; reasons that did not occur are left out."""
    counts = Counter(violation.reason for violation in violations)
    return {reason: counts[reason] for reason in Reason if counts[reason]}

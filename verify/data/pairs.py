"""A preference pair as turns: where the shared prompt ends and the two responses begin."""

from __future__ import annotations

from typing import NamedTuple

from verify.data.rows import Place
from verify.data.violations import Reason, UnusableRow

ASSISTANT = "assistant"
USER = "user"
SYSTEM = "system"


class Turn(NamedTuple):
    """One message of a conversation."""

    role: str
    content: str


Turns = tuple[Turn, ...]


class PreferencePair(NamedTuple):
    """One prompt and two responses, each at least one turn; prompt plus response is a whole conversation."""

    prompt: Turns
    chosen: Turns
    rejected: Turns
    place: Place


class TextPair(NamedTuple):
    """One prompt and two responses as plain text, which no chat template touches."""

    prompt: str
    chosen: str
    rejected: str
    place: Place


Pair = PreferencePair | TextPair


def split_conversations(chosen: Turns, rejected: Turns, place: Place) -> PreferencePair:
    """Split two whole conversations into the prompt that they share and two responses.

    The prompt is the longest common prefix of *turns* that leaves each side at least one turn::

        chosen    user "2+2?"  assistant "4"            prompt    user "2+2?"
        rejected  user "2+2?"  assistant "4, or 5"  ->  responses assistant "4" | assistant "4, or 5"

    The longest common prefix of *tokens* would be another rule: it would give the shared "4" to the prompt.

    Args:
        chosen: The preferred conversation, prompt turns included.
        rejected: The other one, prompt turns included.
        place: Where the row stands.

    Returns:
        The pair; its prompt ends before an assistant's turn on both sides, and both sides end with one.

    Raises:
        UnusableRow: The two conversations are not two responses to one prompt.
    """
    # Written out side by side, without loops: this runs for each row of a file.
    if not chosen or not rejected or chosen[-1].role != ASSISTANT or rejected[-1].role != ASSISTANT:
        raise _without_response(chosen, rejected, place)
    prompt_turns = _shared_turns(chosen, rejected)
    if chosen[prompt_turns].role != ASSISTANT or rejected[prompt_turns].role != ASSISTANT:
        name, turns = ("chosen", chosen) if chosen[prompt_turns].role != ASSISTANT else ("rejected", rejected)
        detail = f"from turn {prompt_turns + 1} on, where {name} has a turn of {turns[prompt_turns].role!r}"
        raise UnusableRow(Reason.DIFFERENT_PROMPTS, place, detail)
    prompt = chosen[:prompt_turns]
    if _is_blank(prompt):
        detail = "no turn before the responses" if not prompt else "no text in the turns before the responses"
        raise UnusableRow(Reason.EMPTY_PROMPT, place, detail)
    if prompt[-1].role == ASSISTANT:
        raise UnusableRow(Reason.PREFILLED_PROMPT, place, f"shared turn {prompt_turns} is the assistant's")
    if _is_blank(chosen[-1:]) or _is_blank(rejected[-1:]):
        name = "chosen" if _is_blank(chosen[-1:]) else "rejected"
        raise UnusableRow(Reason.EMPTY_RESPONSE, place, f"the final turn of {name} holds no text")
    return PreferencePair(prompt, chosen[prompt_turns:], rejected[prompt_turns:], place)


def _without_response(chosen: Turns, rejected: Turns, place: Place) -> UnusableRow:
    """Why one of the two conversations, the first that it holds for, does not end with a response."""
    name, turns = ("chosen", chosen) if not chosen or chosen[-1].role != ASSISTANT else ("rejected", rejected)
    if not turns:
        return UnusableRow(Reason.EMPTY_RESPONSE, place, f"{name} holds no turn")
    return UnusableRow(Reason.NO_FINAL_ASSISTANT_TURN, place, f"{name} ends with a turn of {turns[-1].role!r}")


def text_pair(prompt: str, chosen: str, rejected: str, place: Place) -> TextPair:
    """Check and hold a pair of plain texts.

    Raises:
        UnusableRow: The prompt or a response is empty; blanks count as text here, since no template adds any.
    """
    if not prompt:
        raise UnusableRow(Reason.EMPTY_PROMPT, place, "the prompt is an empty string")
    for name, text in (("chosen", chosen), ("rejected", rejected)):
        if not text:
            raise UnusableRow(Reason.EMPTY_RESPONSE, place, f"{name} is an empty string")
    return TextPair(prompt, chosen, rejected, place)


def _shared_turns(chosen: Turns, rejected: Turns) -> int:
    most = min(len(chosen), len(rejected)) - 1
    for i in range(most):
        if chosen[i] != rejected[i]:
            return i
    return most


def _is_blank(turns: Turns) -> bool:
    for turn in turns:  # noqa: SIM110 - runs three times for each row of a file, and all() takes twice as long
        if turn.content and not turn.content.isspace():
            return False
    return True

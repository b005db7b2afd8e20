"""A row of preferences as turns: where the shared prompt ends and the responses begin."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

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
_Response = TypeVar("_Response")


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


class ResponseGroup(NamedTuple):
    """One prompt with any number of chosen and of rejected responses; all of them turns, or all plain text.

    Args:
        prompt: What every response answers.
        chosen: The preferred responses, at least one.
        rejected: The others, at least one.
        place: Where the row stands.
    """

    prompt: Turns | str
    chosen: tuple[Turns | str, ...]
    rejected: tuple[Turns | str, ...]
    place: Place

    @property
    def named_responses(self) -> list[tuple[str, Turns | str]]:
        """Every response, chosen ones first, with what messages call it: "chosen", or "chosen[1]" among several."""
        return _named(self.chosen, self.rejected)

    def on_both_sides(self, chosen: Sequence[Hashable], rejected: Sequence[Hashable]) -> tuple[str, str] | None:
        """The names of the first chosen response that is also rejected, and of the rejected one; None without any.

        Args:
            chosen: What stands for the chosen responses when they are compared: their texts, or their tokens.
            rejected: The same of the others.
        """
        where = {response: index for index, response in reversed(list(enumerate(rejected)))}
        names = [name for name, _ in self.named_responses]
        for index, response in enumerate(chosen):
            if response in where:
                return names[index], names[len(chosen) + where[response]]
        return None


def has_repeats(*sides: Sequence[Hashable]) -> bool:
    """Whether a side holds one response several times."""
    return any(len(set(side)) < len(side) for side in sides)


Pair = PreferencePair | TextPair
PromptAndResponses = Pair | ResponseGroup
"""What a row is read into."""


def as_group(row: PromptAndResponses) -> ResponseGroup:
    """A pair as a group of 1+1; a group as it is."""
    if isinstance(row, ResponseGroup):
        return row
    return ResponseGroup(row.prompt, (row.chosen,), (row.rejected,), row.place)


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
    # Written out side by side, and turns unpacked rather than asked by name: this runs for each row of a file.
    if not chosen or not rejected:
        raise _without_response("rejected" if chosen else "chosen", (), place)
    (chosen_role, chosen_text), (rejected_role, rejected_text) = chosen[-1], rejected[-1]
    if chosen_role != ASSISTANT:
        raise _without_response("chosen", chosen, place)
    if rejected_role != ASSISTANT:
        raise _without_response("rejected", rejected, place)
    prompt_turns, most = 0, min(len(chosen), len(rejected)) - 1
    while prompt_turns < most and chosen[prompt_turns] == rejected[prompt_turns]:
        prompt_turns += 1
    (chosen_role, _), (rejected_role, _) = chosen[prompt_turns], rejected[prompt_turns]
    if chosen_role != ASSISTANT:
        raise _different_prompts("chosen", chosen, prompt_turns, place)
    if rejected_role != ASSISTANT:
        raise _different_prompts("rejected", rejected, prompt_turns, place)
    prompt = chosen[:prompt_turns]
    # Nearly every prompt is this one: its first turn has text, and its last is the user's.
    if not prompt or prompt[-1][0] != USER or not prompt[0][1] or prompt[0][1].isspace():
        _check_prompt(prompt, place)
    if not chosen_text or chosen_text.isspace():
        raise UnusableRow(Reason.EMPTY_RESPONSE, place, "the final turn of chosen holds no text")
    if not rejected_text or rejected_text.isspace():
        raise UnusableRow(Reason.EMPTY_RESPONSE, place, "the final turn of rejected holds no text")
    return _new_pair(PreferencePair, (prompt, chosen[prompt_turns:], rejected[prompt_turns:], place))


# Half the time of PreferencePair(...), which has to sort out its arguments first.
_new_pair: Callable[[type[PreferencePair], tuple[Turns, Turns, Turns, Place]], PreferencePair] = tuple.__new__


def _without_response(name: str, turns: Turns, place: Place) -> UnusableRow:
    if not turns:
        return UnusableRow(Reason.EMPTY_RESPONSE, place, f"{name} holds no turn")
    return UnusableRow(Reason.NO_FINAL_ASSISTANT_TURN, place, f"{name} ends with a turn of {turns[-1].role!r}")


def _different_prompts(name: str, turns: Turns, prompt_turns: int, place: Place) -> UnusableRow:
    detail = f"from turn {prompt_turns + 1} on, where {name} has a turn of {turns[prompt_turns].role!r}"
    return UnusableRow(Reason.DIFFERENT_PROMPTS, place, detail)


def _check_prompt(prompt: Turns, place: Place) -> None:
    if not prompt or _is_blank(prompt):
        detail = "no turn before the responses" if not prompt else "no text in the turns before the responses"
        raise UnusableRow(Reason.EMPTY_PROMPT, place, detail)
    if prompt[-1][0] == ASSISTANT:
        raise UnusableRow(Reason.PREFILLED_PROMPT, place, f"shared turn {len(prompt)} is the assistant's")


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


def question_pair(prompt: Turns, chosen: str, rejected: str, place: Place) -> PreferencePair:
    """A pair whose two responses are one turn each.

    Raises:
        UnusableRow: No text in the prompt, or in a response.
    """
    if _is_blank(prompt):
        raise UnusableRow(Reason.EMPTY_PROMPT, place, "no text in the turns before the responses")
    for name, text in (("chosen", chosen), ("rejected", rejected)):
        if not text or text.isspace():
            raise UnusableRow(Reason.EMPTY_RESPONSE, place, f"{name} holds no text")
    return PreferencePair(prompt, (Turn(ASSISTANT, chosen),), (Turn(ASSISTANT, rejected),), place)


def turns_group(prompt: Turns, chosen: Sequence[Turns], rejected: Sequence[Turns], place: Place) -> ResponseGroup:
    """A group whose responses are turns; further turns that all of them begin with join the prompt, as in a pair.

    Raises:
        UnusableRow: A side without a response, or conversations that are no responses to one prompt.
    """
    _check_sides(chosen, rejected, place)
    named = _named(chosen, rejected)
    for name, response in named:
        if not response or response[-1].role != ASSISTANT:
            raise _without_response(name, response, place)
    conversations = [prompt + response for _, response in named]
    prompt_turns = min(_shared_turns(conversations[0], conversation) for conversation in conversations[1:])
    for (name, _), conversation in zip(named, conversations, strict=True):
        if conversation[prompt_turns].role != ASSISTANT:
            raise _different_prompts(name, conversation, prompt_turns, place)
        if _is_blank(conversation[-1:]):
            raise UnusableRow(Reason.EMPTY_RESPONSE, place, f"the final turn of {name} holds no text")
    _check_prompt(conversations[0][:prompt_turns], place)
    responses = tuple(conversation[prompt_turns:] for conversation in conversations)
    return ResponseGroup(conversations[0][:prompt_turns], responses[: len(chosen)], responses[len(chosen) :], place)


def text_group(prompt: str, chosen: Sequence[str], rejected: Sequence[str], place: Place) -> ResponseGroup:
    """A group of plain texts.

    Raises:
        UnusableRow: No response on a side, or an empty prompt or response.
    """
    _check_sides(chosen, rejected, place)
    if not prompt:
        raise UnusableRow(Reason.EMPTY_PROMPT, place, "the prompt is an empty string")
    for name, text in _named(chosen, rejected):
        if not text:
            raise UnusableRow(Reason.EMPTY_RESPONSE, place, f"{name} is an empty string")
    return ResponseGroup(prompt, tuple(chosen), tuple(rejected), place)


def _check_sides(chosen: Sequence[object], rejected: Sequence[object], place: Place) -> None:
    for side, responses in (("chosen", chosen), ("rejected", rejected)):
        if not responses:
            raise UnusableRow(Reason.EMPTY_RESPONSE, place, f"{side} holds no response")


def _named(chosen: Sequence[_Response], rejected: Sequence[_Response]) -> list[tuple[str, _Response]]:
    return [
        (side if len(responses) == 1 else f"{side}[{index}]", response)
        for side, responses in (("chosen", chosen), ("rejected", rejected))
        for index, response in enumerate(responses)
    ]


def _shared_turns(chosen: Turns, rejected: Turns) -> int:
    most = min(len(chosen), len(rejected)) - 1
    for i in range(most):
        if chosen[i] != rejected[i]:
            return i
    return most


def _is_blank(turns: Turns) -> bool:
    for _, content in turns:  # noqa: SIM110 - runs for each row of a file, and all() takes twice as long
        if content and not content.isspace():
            return False
    return True

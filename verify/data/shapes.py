"""The published shapes of preference rows: a literal table, and how each becomes a pair.

Detection looks at the columns of a row and the kinds of their values, in the order of `SHAPES`; the first match
wins. Nothing about the file's name or the other rows takes part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

from verify.data.pairs import (
    SYSTEM,
    USER,
    PromptAndResponses,
    ResponseGroup,
    Turn,
    Turns,
    question_pair,
    split_conversations,
    text_group,
    text_pair,
    turns_group,
)
from verify.data.row_values import clipped, described, names_of, text_of, turns_in, turns_of
from verify.data.rows import DataError, Row
from verify.data.violations import Reason, UnusableRow

CONTEXT_COLUMNS = ("image", "images", "image_path", "tools", "chat_template_kwargs")
"""Columns that a trainer may feed to the model beside the text. They are left out here, and the result says so."""
_ANY_CONTEXT_COLUMN = frozenset(CONTEXT_COLUMNS)


def _is_text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_turns(value: object) -> bool:
    if not isinstance(value, list):
        return False
    for turn in value:  # noqa: SIM110 - runs a few times for each row of a file, and all() takes twice as long
        if not isinstance(turn, dict):
            return False
    return True


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_lists_of_turns(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_turns, value))


class Kind(Enum):
    """What the value of a column has to be, in words, and a test of it."""

    TEXT = "a string", lambda value: isinstance(value, str)
    TEXT_OR_NULL = "a string or null", _is_text_or_null
    TURNS = "a list of {role, content} objects", _is_turns
    TEXTS = "a list of strings", _is_texts
    LISTS_OF_TURNS = "a list of lists of {role, content} objects", _is_lists_of_turns
    ANY = "present", lambda value: True

    def __init__(self, words: str, fits: Callable[[object], bool]) -> None:
        self.words = words
        self.fits = fits


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape of row.

    Args:
        name: Its name in results.
        columns: The columns that a row of this shape has, and their kinds; it may have more.
        read: Turns a row of this shape into a pair, or a group where a row has several responses on a side.
        without: Columns that a row of this shape does not have.
        tests: The tests of the columns' kinds.
    """

    name: str
    columns: Mapping[str, Kind]
    read: Callable[[Row], PromptAndResponses]
    without: tuple[str, ...] = ()
    tests: tuple[tuple[str, Callable[[object], bool]], ...] = field(init=False)

    def __post_init__(self) -> None:
        # What every row passes needs no test.
        tests = tuple((name, kind.fits) for name, kind in self.columns.items() if kind is not Kind.ANY)
        object.__setattr__(self, "tests", tests)

    def fits(self, row: Row) -> bool:
        """Whether a row is of this shape: `faults` is empty."""
        return self.names_fit(row.columns) and self.kinds_fit(row)

    def names_fit(self, names: Iterable[str]) -> bool:
        """Whether a row with these columns has those of the shape, and none that it may not have."""
        return self.columns.keys() <= set(names) and set(self.without).isdisjoint(names)

    def kinds_fit(self, row: Row) -> bool:
        """Whether the shape's columns, all of which the row has, hold the right kinds."""
        columns = row.columns
        for name, fits in self.tests:  # noqa: SIM110 - runs for each row, and all() takes twice as long
            if not fits(columns[name]):
                return False
        return True

    def faults(self, row: Row) -> list[str]:
        """Why a row is not of this shape; empty if it is."""
        missing = [f"missing column {name!r}" for name in self.columns if name not in row.columns]
        unfit = [
            f"column {name!r} is {described(row.columns[name])}, expected {kind.words}"
            for name, kind in self.columns.items()
            if name in row.columns and not kind.fits(row.columns[name])
        ]
        return missing + unfit + [f"unexpected column {name!r}" for name in self.without if name in row.columns]

    def num_fitting(self, row: Row) -> int:
        """How many of the shape's columns the row has, of the right kind; an empty list says nothing of its kind."""
        return sum(
            name in row.columns and row.columns[name] != [] and kind.fits(row.columns[name])
            for name, kind in self.columns.items()
        )


def _read_conversations(row: Row) -> PromptAndResponses:
    """Whole conversations in chosen and rejected; a prompt string, which one shared user turn has to repeat.

    Which one differs between data sets (the first in UltraFeedback, the last in Capybara), so any of them will do;
    blanks around it do not count, because the column is compared and never tokenised.
    """
    pair = split_conversations(turns_in(row, "chosen"), turns_in(row, "rejected"), row.place)
    prompt = row.columns["prompt"].strip()
    for turn in pair.prompt:
        if turn.role == USER and turn.content.strip() == prompt:
            break
    else:
        detail = f"no shared user turn is the prompt column {clipped(prompt)}"
        raise UnusableRow(Reason.PROMPT_COLUMN_DIFFERS, row.place, detail)
    return pair


def _read_implicit_prompt(row: Row) -> PromptAndResponses:
    return split_conversations(turns_in(row, "chosen"), turns_in(row, "rejected"), row.place)


def _read_explicit_prompt(row: Row) -> PromptAndResponses:
    """Prompt turns, and the turns after them; further turns that both sides share join the prompt."""
    prompt = turns_in(row, "prompt")
    if not prompt:
        raise UnusableRow(Reason.EMPTY_PROMPT, row.place, "the prompt column holds no turn")
    sides = []
    for name in ("chosen", "rejected"):
        response = turns_in(row, name)
        if not response:
            raise UnusableRow(Reason.EMPTY_RESPONSE, row.place, f"{name} holds no turn")
        if response[0] == prompt[0] and response[: len(prompt)] == prompt:
            detail = f"{name} repeats the turns of the prompt column, which would be fed twice"
            raise UnusableRow(Reason.PROMPT_COLUMN_DIFFERS, row.place, detail)
        sides.append(prompt + response)
    chosen, rejected = sides
    return split_conversations(chosen, rejected, row.place)


def _read_text(row: Row) -> PromptAndResponses:
    prompt, chosen, rejected = (text_of(row.columns[name], name, row) for name in ("prompt", "chosen", "rejected"))
    return text_pair(prompt, chosen, rejected, row.place)


def _read_orca(row: Row) -> PromptAndResponses:
    system = text_of(row.columns["system"] or "", "system", row)
    prompt = (Turn(SYSTEM, system),) if system else ()
    return _question_pair(row.columns, prompt, row)


def _read_rlhf_v(row: Row) -> PromptAndResponses:
    try:
        answer = json.loads(row.columns["text"])
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{row.place}: column 'text' is not JSON: {error}: expected {_RLHF_V_TEXT}, or a row of another shape; "
            f"columns found: {names_of(row.columns)}"
        ) from error
    fields = ("question", "chosen", "rejected")
    if not isinstance(answer, dict) or not all(isinstance(answer.get(name), str) for name in fields):
        found = described(answer) if not isinstance(answer, dict) else f"an object with {names_of(answer)}"
        raise DataError(f"{row.place}: column 'text' holds {found}: expected {_RLHF_V_TEXT}")
    # The JSON in the text can spell what the row's own could not.
    return _question_pair(answer, (), row._replace(is_encodable=False))


_RLHF_V_TEXT = "a JSON object with the strings question, chosen and rejected"


def _question_pair(fields: Mapping[str, Any], system: Turns, row: Row) -> PromptAndResponses:
    prompt = (*system, Turn(USER, text_of(fields["question"], "question", row)))
    chosen, rejected = text_of(fields["chosen"], "chosen", row), text_of(fields["rejected"], "rejected", row)
    return question_pair(prompt, chosen, rejected, row.place)


def _read_text_group(row: Row) -> ResponseGroup:
    columns = row.columns
    chosen, rejected = (
        [text_of(text, f"{side}[{index}]", row) for index, text in enumerate(columns[side])]
        for side in ("chosen", "rejected")
    )
    return text_group(text_of(columns["prompt"], "prompt", row), chosen, rejected, row.place)


def _read_turns_group(row: Row) -> ResponseGroup:
    prompt = turns_in(row, "prompt")
    if not prompt:
        raise UnusableRow(Reason.EMPTY_PROMPT, row.place, "the prompt column holds no turn")
    chosen, rejected = (
        [turns_of(turns, f"{side}[{index}]", row) for index, turns in enumerate(row.columns[side])]
        for side in ("chosen", "rejected")
    )
    for side, responses in (("chosen", chosen), ("rejected", rejected)):
        for index, response in enumerate(responses):
            if response[: len(prompt)] == prompt:
                detail = f"{side}[{index}] repeats the turns of the prompt column, which would be fed twice"
                raise UnusableRow(Reason.PROMPT_COLUMN_DIFFERS, row.place, detail)
    return turns_group(prompt, chosen, rejected, row.place)


_CONVERSATIONS = {"prompt": Kind.TEXT, "chosen": Kind.TURNS, "rejected": Kind.TURNS}

# Shapes with columns of their own come before the plainer ones that they extend.
SHAPES: tuple[Shape, ...] = (
    Shape("h4_ultrafeedback", {**_CONVERSATIONS, "messages": Kind.TURNS}, _read_conversations),
    Shape(
        "argilla_ultrafeedback",
        {**_CONVERSATIONS, "chosen-rating": Kind.ANY, "rejected-rating": Kind.ANY},
        _read_conversations,
    ),
    Shape(
        "capybara_multi_turn",
        {**_CONVERSATIONS, "rating_chosen": Kind.ANY, "rating_rejected": Kind.ANY},
        _read_conversations,
    ),
    Shape("tulu", {**_CONVERSATIONS, "id": Kind.ANY, "source": Kind.ANY}, _read_conversations),
    Shape("conversations", _CONVERSATIONS, _read_conversations),
    Shape(
        "trl_conversational",
        {"prompt": Kind.TURNS, "chosen": Kind.TURNS, "rejected": Kind.TURNS},
        _read_explicit_prompt,
    ),
    Shape(
        "trl_implicit_prompt",
        {"chosen": Kind.TURNS, "rejected": Kind.TURNS},
        _read_implicit_prompt,
        without=("prompt",),
    ),
    Shape(
        "orca_dpo_pairs",
        {"system": Kind.TEXT_OR_NULL, "question": Kind.TEXT, "chosen": Kind.TEXT, "rejected": Kind.TEXT},
        _read_orca,
    ),
    # Without a prompt column nothing tells where the prompt of a plain string ends: such rows match no shape.
    Shape("trl_text", {"prompt": Kind.TEXT, "chosen": Kind.TEXT, "rejected": Kind.TEXT}, _read_text),
    # Several responses on a side: TRL's explicit-prompt formats with lists, for groups of any size.
    Shape(
        "text_groups",
        {"prompt": Kind.TEXT, "chosen": Kind.TEXTS, "rejected": Kind.TEXTS},
        _read_text_group,
    ),
    Shape(
        "conversational_groups",
        {"prompt": Kind.TURNS, "chosen": Kind.LISTS_OF_TURNS, "rejected": Kind.LISTS_OF_TURNS},
        _read_turns_group,
    ),
    Shape("rlhf_v", {"text": Kind.TEXT}, _read_rlhf_v, without=("chosen", "rejected")),
)


def shape_of(row: Row) -> Shape:
    """The shape of a row, from its columns.

    Raises:
        DataError: No shape matches; the message names the columns found and what the closest shape would need.
    """
    for shape in _shapes_with(tuple(row.columns)):
        if shape.kinds_fit(row):
            return shape
    # max keeps the first of several, so the answer does not depend on chance.
    closest = max(SHAPES, key=lambda shape: (shape.num_fitting(row), -len(shape.faults(row))))
    found = f"{row.place}: not a known shape of preference row; columns found: {names_of(row.columns)}"
    if closest.num_fitting(row):
        raise DataError(f"{found}; closest is {closest.name}: {'; '.join(closest.faults(row))}")
    known = ", ".join(f"{shape.name} ({names_of(shape.columns)})" for shape in SHAPES)
    raise DataError(f"{found}; known shapes: {known}")


@lru_cache(maxsize=64)
def _shapes_with(names: tuple[str, ...]) -> tuple[Shape, ...]:
    """The shapes that a row with these columns may have; nearly every row of a file has the same ones."""
    return tuple(shape for shape in SHAPES if shape.names_fit(names))


def same_shape(row: Row, first: Shape | None) -> Shape:
    """The shape of a row, which has to be that of the rows before it.

    Args:
        row: The row.
        first: The shape of the rows before it; None for the first row.

    Raises:
        DataError: No shape matches, or another one.
    """
    shape = shape_of(row)
    if first is not None and shape is not first:
        if _is_without_responses(row) and first.fits(row):
            return first
        raise DataError(
            f"{row.place}: the row has shape {shape.name}, the rows before it {first.name}: "
            "expected one shape in a file; split it"
        )
    return shape


def _is_without_responses(row: Row) -> bool:
    """Whether both sides are empty lists, which may be lists of texts, of turns or of conversations."""
    return row.columns.get("chosen") == row.columns.get("rejected") == []


def left_out_columns(row: Row) -> tuple[str, ...]:
    """The `CONTEXT_COLUMNS` that a row fills, and that its pair leaves out."""
    if _ANY_CONTEXT_COLUMN.isdisjoint(row.columns):
        return ()
    return tuple(name for name in CONTEXT_COLUMNS if row.columns.get(name))

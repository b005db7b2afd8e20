"""Values of a preference row: turns and texts as they must be, and what is said of those that are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from verify.data.pairs import Turn, Turns
from verify.data.rows import DataError, Row
from verify.data.violations import Reason, UnusableRow

_TURN_EXTRAS = ("tool_calls", "tool_call_id", "name", "images", "reasoning_content", "thinking")
"""Fields of a turn that chat templates render; a turn that fills one is more than role and content."""


def turns_in(row: Row, column: str) -> Turns:
    """The turns of a column.

    Args:
        row: The row.
        column: A column that holds a list of turns.

    Returns:
        The turns.

    Raises:
        DataError: What stands there is no turn.
        UnusableRow: A turn is more than role and text.
    """
    return turns_of(row.columns[column], column, row)


def turns_of(values: Iterable[Mapping[str, Any]], name: str, row: Row) -> Turns:
    """The turns of a list; raises as :func:`turns_in`.

    Args:
        values: The list.
        name: Where in the row it stands, for messages.
        row: The row.

    Returns:
        The turns.
    """
    turns: list[Turn] = []
    is_encodable = row.is_encodable
    for value in values:
        try:
            role, content = value["role"], value["content"]
        except KeyError:
            role = content = None
        # Nearly every turn is this one: a role, a text and no more.
        if type(role) is type(content) is str and len(value) == 2 and (is_encodable or _is_text(role + content)):
            turns.append(_new_turn(Turn, (role, content)))
        else:
            turns.append(_odd_turn(value, name, len(turns), row))
    return tuple(turns)


# Half the time of Turn(role, content), which has to sort out its arguments first.
_new_turn: Callable[[type[Turn], tuple[str, str]], Turn] = tuple.__new__


def _odd_turn(value: Mapping[str, Any], column: str, index: int, row: Row) -> Turn:
    role, content = value.get("role"), value.get("content")
    name = f"{column}[{index}]"
    if not isinstance(role, str) or "content" not in value:
        raise DataError(f"{row.place}: {name} has {names_of(value)}: expected a turn with the string role, and content")
    for extra in _TURN_EXTRAS:
        if value.get(extra):
            raise UnusableRow(Reason.TURN_NOT_TEXT, row.place, f"{name} carries {extra!r}")
    return Turn(text_of(role, f"{name}.role", row), text_of(content, f"{name}.content", row))


def _is_text(value: str) -> bool:
    """Whether a string can be encoded: JSON can spell half a surrogate pair, which no tokenizer takes."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_of(value: object, name: str, row: Row) -> str:
    """A value that must be text.

    Args:
        value: The value.
        name: Where in the row it stands, for messages.
        row: The row.

    Returns:
        The text.

    Raises:
        UnusableRow: It is no string, or one that cannot be encoded.
    """
    if not isinstance(value, str):
        raise UnusableRow(Reason.TURN_NOT_TEXT, row.place, f"{name} is {described(value)}")
    if not row.is_encodable and not _is_text(value):
        raise UnusableRow(Reason.HALF_A_CHARACTER, row.place, f"{name} holds half a surrogate pair")
    return value


def described(value: object) -> str:
    """What a value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, list):
        if not value:
            return "an empty list"
        odd = next((i for i, item in enumerate(value) if not isinstance(item, dict)), None)
        return "a list" if odd is None else f"a list whose item {odd} is {described(value[odd])}"
    names = {str: "a string", dict: "an object", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")


def names_of(columns: Mapping[str, Any]) -> str:
    """Names of columns in order, or "none"."""
    return ", ".join(sorted(columns)) or "none"


def clipped(text: str, most: int = 60) -> str:
    """A text in quotes, cut to a length."""
    return repr(text if len(text) <= most else text[: most - 3] + "...")

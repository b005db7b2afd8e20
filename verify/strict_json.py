"""JSON files that users write, read strictly: no field twice, nothing unknown, no value turned into another type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
_MAX_PROBLEMS_NAMED = 3


class JsonFileError(ValueError):
    """A file does not hold what it should; the message names the file, the place and what would be right."""


def read_json(path: Path, kind: type[T] | TypeAdapter[T], *, what: str) -> T:
    """Read a JSON file into a pydantic type.

    Args:
        path: The file.
        kind: A model with ``extra="forbid"`` and ``strict=True``, or an adapter of such models.
        what: What the file should hold, for messages: "cases".

    Returns:
        The validated content.

    Raises:
        JsonFileError: No such file, not UTF-8, not JSON, a field twice, or content of another shape.
    """
    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    text = _text(path, what)
    if not text.strip():
        raise JsonFileError(f"{what} file {path}: empty")
    try:
        json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise JsonFileError(
            f"{what} file {path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise JsonFileError(f"{what} file {path}: {error}") from error
    try:
        return adapter.validate_json(text)  # in JSON mode, where a list may stand for a tuple though all is strict
    except ValidationError as error:
        raise JsonFileError(f"{what} file {path}: {_problems(error)}") from error


def json_text(content: dict[str, Any] | list[Any]) -> str:
    """Indented JSON with lists of numbers on one line each, ending in a newline."""
    return _indented(content, "") + "\n"


def _indented(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and value:
        fields = (f"{inner}{json.dumps(name)}: {_indented(item, inner)}" for name, item in value.items())
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _indented(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise JsonFileError(f"{what} file {path}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise JsonFileError(f"{what} file {path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise JsonFileError(f"{what} file {path}: cannot be read: {error.strerror}") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!r} occurs twice in one object")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a value of JSON")


def _problems(error: ValidationError) -> str:
    known = {"extra_forbidden": "unknown field", "missing": "the field is missing"}
    problems = []
    for item in error.errors(include_url=False)[:_MAX_PROBLEMS_NAMED]:
        place = _place(item["loc"])
        if item["type"] in known:
            problems.append(f"{place}: {known[item['type']]}")
        elif item["type"] == "value_error":
            problems.append(": ".join(filter(None, (place, str(item["ctx"]["error"])))))
        else:
            shown = repr(item["input"])
            value = f" (it is {shown})" if len(shown) < 60 else ""
            problems.append(f"{place or 'the whole'}: {item['msg']}{value}")
    if (more := error.error_count() - len(problems)) > 0:
        problems.append(f"and {more} more")
    return "; ".join(problems)


def _place(parts: tuple[int | str, ...]) -> str:
    """``[0].groups[1].prompt_ids[2]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")

"""JSON Lines, read fast: a block of lines at a time, each line parsed once.

The fast parser keeps the last of two equal keys and says little about what it refuses. So a row is taken from it only
if it has as many keys as the line has colons that can follow one, which leaves no room for a second key of the same
name. Every other line goes to the slower parser of the standard library, which decides, and words what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json

from verify.data.rows import DataError, Place, Row

_BLOCK_BYTES = 2**17
"""Fits into a core's second-level cache; larger blocks are read no faster."""
_SHORTEST_COUNTED, _LARGEST_COUNTED = 3, 2**22
"""A shorter block holds no key; a longer one a line of megabytes, and counting would take several times its memory."""
_FARTHEST_BACK = 100
_UNKNOWN = -1
_COLON, _QUOTE, _BACKSLASH, _LAST_BLANK = b':"\\ '

_parse_fast = from_json

# Half the time of Place(file, line) and Row(...), which have to sort out their arguments first.
_new_place: Callable[[type[Place], tuple[str, int]], Place] = tuple.__new__
_new_row: Callable[[type[Row], tuple[dict[str, Any], Place, bool]], Row] = tuple.__new__


def iter_json_lines(path: Path, max_line_bytes: int, on_block: Callable[[bytes], object]) -> Iterator[Row]:
    """Stream the rows of a JSON Lines file; see `verify.data.rows.iter_rows`."""
    file, line_number = path.name, 0
    with path.open("rb", buffering=_BLOCK_BYTES) as stream:
        while block := stream.read(_BLOCK_BYTES):
            if not block.endswith(b"\n"):
                # Two more bytes than the limit hold the line break, "\n" or "\r\n".
                rest = stream.readline(max_line_bytes + 2)
                if len(rest) > max_line_bytes:
                    _check_length(rest, Place(file, line_number + block.count(b"\n") + 1), max_line_bytes)
                block += rest
            on_block(block)
            lines = block.split(b"\n")
            if not lines[-1]:
                lines.pop()  # what follows the last line break
            for line, num_colons in zip(lines, _colons_after_keys(block, lines), strict=True):
                line_number += 1
                if len(line) > max_line_bytes:
                    _check_length(line, Place(file, line_number), max_line_bytes)
                if line and not line.isspace():
                    yield _row(line, num_colons, _new_place(Place, (file, line_number)))


def _check_length(line: bytes, place: Place, max_line_bytes: int) -> None:
    # The second length is that without the line break; taking it off copies the line, so only where it matters.
    if len(line.removesuffix(b"\n").removesuffix(b"\r")) > max_line_bytes:
        raise DataError(
            f"{place}: the line is longer than {max_line_bytes} bytes: "
            "expected one row on each line; split it, or leave it out of the file"
        )


def _colons_after_keys(block: bytes, lines: list[bytes]) -> list[int]:
    r"""For each line the number of colons that can end a key: those after a quote, with or without blanks between.

    Some of them may stand in strings, so this is an upper bound. A quote after a single backslash ends no string, which
    rules out most of those::

        {"a": "\": x", "b" : {"c": ": y"}}   ->   4, for the keys a, b and c, and the colon that begins a string
    """
    if not _SHORTEST_COUNTED <= len(block) <= _LARGEST_COUNTED:
        return [_UNKNOWN] * len(lines)
    characters = np.frombuffer(block, dtype=np.uint8)
    # The first colon that ends a key is byte 3 of a line at least, {"":1}, so that reaching back stays in the line.
    colon, last, last_but_one, before = (characters[3 - back : len(block) - back] for back in range(4))
    is_colon = colon == _COLON
    ends_key = before == _BACKSLASH
    ends_key |= last_but_one != _BACKSLASH
    ends_key &= last == _QUOTE
    ends_key &= is_colon
    is_colon &= last <= _LAST_BLANK
    if is_colon.any():
        for after_blank in np.flatnonzero(is_colon).tolist():
            ends_key[after_blank] = _may_follow_quote(block, after_blank + 3)
    line_ends = np.cumsum([len(line) + 1 for line in lines])
    return [b - a for a, b in pairwise([0, *np.searchsorted(np.flatnonzero(ends_key), line_ends - 3).tolist()])]


def _may_follow_quote(block: bytes, colon: int) -> bool:
    """Whether a quote stands in front of the blanks that stand in front of a colon, or more of them than are read."""
    before = block[max(0, colon - _FARTHEST_BACK) : colon].rstrip()
    return not before or before.endswith(b'"')


def _row(line: bytes, num_colons: int, place: Place) -> Row:
    try:
        columns = _parse_fast(line)
    except ValueError:
        return Row(_parse_strictly(line, place), place)
    if type(columns) is dict and (_num_outer_keys(columns) == num_colons or _num_keys(columns) == num_colons):
        return _new_row(Row, (columns, place, True))
    return Row(_parse_strictly(line, place), place)


def _num_outer_keys(columns: dict[str, Any]) -> int:
    """The keys of a row and of the objects in its lists: all of them, where a row holds turns and no more."""
    num_keys = len(columns)
    for value in columns.values():
        if type(value) is list:
            for item in value:
                if type(item) is dict:
                    num_keys += len(item)
    return num_keys


def _num_keys(value: dict[str, Any] | list[Any]) -> int:
    """How many keys all objects in a value have together."""
    num_keys = len(value) if isinstance(value, dict) else 0
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            num_keys += _num_keys(inner)
    return num_keys


def _parse_strictly(line: bytes, place: Place) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: byte {error.start} of the line is not UTF-8 ({error.reason}): save the file as UTF-8"
        ) from error
    try:
        value = _DECODER.decode(text)
    except _DuplicateKey as error:
        raise DataError(f"{place}: the key {error.args[0]!r} occurs twice in one object: expected it once") from error
    except json.JSONDecodeError as error:
        hint = next((hint for start, hint in _HINTS.items() if text.lstrip().startswith(start)), "")
        raise DataError(f"{place}: not JSON: {error}: expected one JSON object on each line{hint}") from error
    # JSON that this program does not hold: an integer with too many digits, brackets nested without end.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: the row cannot be held: {error}: leave it out of the file") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: the row is a JSON {type(value).__name__}: expected one JSON object on each line")
    return value


_HINTS = {
    "[": " (an array over several lines is not JSON Lines)",
    "\ufeff": " (the file begins with a byte order mark: save it as UTF-8 without one)",
}


class _DuplicateKey(Exception):  # noqa: N818 - carries the key out of the decoder
    pass


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    columns = dict(pairs)
    if len(columns) != len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(next(name for name in names if names.count(name) > 1))
    return columns


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)

"""Rows of a preference file, one at a time, each with the place it came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

MAX_LINE_BYTES = 64 * 2**20
_JSONL_SUFFIXES = (".jsonl", ".json")
_PARQUET_SUFFIX = ".parquet"
# Rows decoded together; small, because a row may carry an image.
_PARQUET_BATCH_ROWS = 64


class DataError(ValueError):
    """A preference file, its tokenizer, or a request about them that cannot be used as it is."""


# Named tuples, because a file may have millions of rows and these are made for each.
class Place(NamedTuple):
    """Where a row stands.

    Args:
        file: Base name of the file, so that results do not carry a machine's paths.
        line: Line of a JSON Lines file or row of a Parquet file, from 1.
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Row(NamedTuple):
    """One row: its columns by name, and its place."""

    columns: Mapping[str, Any]
    place: Place


def check_file(path: Path) -> None:
    """Refuse a path that `iter_rows` could not read.

    Raises:
        DataError: No such file, or another suffix than .jsonl, .json and .parquet.
    """
    expected = "give one .jsonl, .json (JSON Lines) or .parquet file"
    if not path.is_file():
        raise DataError(f"preference file {path} {'is a directory' if path.is_dir() else 'does not exist'}: {expected}")
    if path.suffix.lower() not in (*_JSONL_SUFFIXES, _PARQUET_SUFFIX):
        raise DataError(f"preference file {path} has the suffix {path.suffix!r}: {expected}")


def iter_rows(
    path: Path, *, max_line_bytes: int = MAX_LINE_BYTES, on_line: Callable[[bytes], object] | None = None
) -> Iterator[Row]:
    """Stream the rows of a JSON Lines (.jsonl, .json) or Parquet (.parquet) file.

    One line, or one small batch of Parquet rows, is in memory at a time. Blank lines hold no row; they count as lines.

    Args:
        path: The file; its suffix decides the format.
        max_line_bytes: Longest line that is read, in bytes, without its line break.
        on_line: Called with the bytes of every line of a JSON Lines file, blank ones too, in file order.

    Yields:
        The rows in file order.

    Raises:
        DataError: No such file, another suffix, no row, or a row that is not a JSON object in UTF-8 on one line of at
            most ``max_line_bytes``; the message names file and line.
    """
    check_file(path)
    rows = _iter_parquet(path) if path.suffix.lower() == _PARQUET_SUFFIX else _iter_jsonl(path, max_line_bytes, on_line)
    first = next(rows, None)
    if first is None:
        raise DataError(f"preference file {path} holds no row: expected at least one")
    yield first
    yield from rows


def is_parquet(path: Path) -> bool:
    """Whether the suffix of a file says Parquet."""
    return path.suffix.lower() == _PARQUET_SUFFIX


def parquet_num_rows(path: Path) -> int:
    """The number of rows that a Parquet file says it has, without reading them.

    Raises:
        DataError: pyarrow is missing, or the file is not Parquet.
    """
    with _parquet(path) as table:
        return int(table.metadata.num_rows)


def _iter_jsonl(path: Path, max_line_bytes: int, on_line: Callable[[bytes], object] | None) -> Iterator[Row]:
    with path.open("rb") as stream:
        for line_number, line in enumerate(_iter_lines(stream, path.name, max_line_bytes), start=1):
            place = Place(path.name, line_number)
            if on_line is not None:
                on_line(line)
            if not line.isspace():
                yield Row(_parse_object(line, place), place)


def _iter_lines(stream: BinaryIO, file: str, max_line_bytes: int) -> Iterator[bytes]:
    line_number = 0
    # Two more bytes than the limit hold the line break, "\n" or "\r\n".
    while line := stream.readline(max_line_bytes + 2):
        line_number += 1
        # The second length is that without the line break; taking it off copies the line, so only where it matters.
        if len(line) > max_line_bytes and len(line.removesuffix(b"\n").removesuffix(b"\r")) > max_line_bytes:
            raise DataError(
                f"{file}:{line_number}: the line is longer than {max_line_bytes} bytes: "
                "one row belongs on one line; raise the limit if a row is really that long"
            )
        yield line


def _parse_object(line: bytes, place: Place) -> dict[str, Any]:
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
    # ValueError also covers a number with too many digits; RecursionError, brackets nested without end.
    except (ValueError, RecursionError) as error:
        hint = " (an array over several lines is not JSON Lines)" if text.lstrip().startswith("[") else ""
        raise DataError(f"{place}: not JSON: {error}: expected one JSON object on each line{hint}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: the row is a JSON {type(value).__name__}: expected one JSON object on each line")
    return value


class _DuplicateKey(Exception):  # noqa: N818 - carries the key out of the decoder
    pass


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    columns = dict(pairs)
    if len(columns) != len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(next(name for name in names if names.count(name) > 1))
    return columns


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


@contextmanager
def _parquet(path: Path, *, rows_read: Callable[[], int] = lambda: 0) -> Iterator[Any]:
    """An open Parquet file; whatever is wrong with it, found on opening or later, becomes a `DataError`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"reading {path.name} needs pyarrow: pip install 'packparity[parquet]'") from error
    try:
        with parquet.ParquetFile(path) as table:
            yield table
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path.name}: not a readable Parquet file after row {rows_read()}: {error}") from error


def _iter_parquet(path: Path) -> Iterator[Row]:
    row_number = 0
    with _parquet(path, rows_read=lambda: row_number) as table:
        for batch in table.iter_batches(batch_size=_PARQUET_BATCH_ROWS):
            for columns in batch.to_pylist():
                row_number += 1
                yield Row(columns, Place(path.name, row_number))

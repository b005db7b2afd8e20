"""Rows of a preference file, one at a time, each with the place it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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
    """One row.

    Args:
        columns: Its values by the name of their column.
        place: Where it stands.
        is_encodable: Whether no text in it can hold half a surrogate pair, which JSON can spell and no tokenizer takes.
    """

    columns: Mapping[str, Any]
    place: Place
    is_encodable: bool = False


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
    path: Path, *, max_line_bytes: int = MAX_LINE_BYTES, on_block: Callable[[bytes], object] = lambda block: None
) -> Iterator[Row]:
    """Stream the rows of a JSON Lines (.jsonl, .json) or Parquet (.parquet) file.

    One block of lines, or one small batch of Parquet rows, is in memory at a time. Blank lines hold no row; they count
    as lines.

    Args:
        path: The file; its suffix decides the format.
        max_line_bytes: Longest line that is read, in bytes, without its line break.
        on_block: Called with the bytes of a JSON Lines file, block by block, before the rows in them.

    Yields:
        The rows in file order.

    Raises:
        DataError: No such file, another suffix, no row, or a row that is not a JSON object in UTF-8 on one line of at
            most ``max_line_bytes``; the message names file and line.
    """
    check_file(path)
    if is_parquet(path):
        rows = _iter_parquet(path)
    else:
        from verify.data.json_lines import iter_json_lines  # numpy and pydantic, which a command line need not wait for

        rows = iter_json_lines(path, max_line_bytes, on_block)
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
            for columns in _rows_of(batch, path.name, row_number):
                row_number += 1
                yield Row(columns, Place(path.name, row_number), is_encodable=True)


def _rows_of(batch: Any, file: str, rows_before: int) -> list[dict[str, Any]]:
    """The rows of a batch as Python values; Parquet does not check that its strings are UTF-8."""
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError:
        for index in range(batch.num_rows):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    column[index].as_py()
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{Place(file, rows_before + index + 1)}: column {name!r} is not UTF-8 ({error.reason} at byte "
                        f"{error.start} of a string): write the strings as UTF-8"
                    ) from error
        raise

"""Rows: every row once, in order, with its line; and each broken file refused at its line."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from verify.data.rows import DataError, Place, iter_rows


def lines_file(tmp_path: Path, *lines: bytes, name: str = "rows.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(b"\n".join(lines))
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "ROWS.JSONL"])
def test_jsonl_rows_come_in_order_with_their_line(tmp_path: Path, name: str) -> None:
    path = lines_file(tmp_path, b'{"a": 1}', b"", b'{"a": "\xc3\xb6"}\r', b"  ", b'{"a": null}', name=name)
    rows = list(iter_rows(path))
    assert [row.columns for row in rows] == [{"a": 1}, {"a": "ö"}, {"a": None}]
    assert [row.place for row in rows] == [Place(name, 1), Place(name, 3), Place(name, 5)]


def test_a_place_names_the_file_without_its_folder(tmp_path: Path) -> None:
    (row,) = iter_rows(lines_file(tmp_path, b"{}"))
    assert str(row.place) == "rows.jsonl:1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', r"rows\.jsonl:2: not JSON: .*one JSON object on each line"),
        (b"[{", r"rows\.jsonl:2: not JSON: .*an array over several lines is not JSON Lines"),
        (b"[" * 100_000, r"rows\.jsonl:2: the row cannot be held: maximum recursion"),
        (b'{"a": ' + b"9" * 5000 + b"}", r"rows\.jsonl:2: the row cannot be held: .*digits"),
        (b"\xef\xbb\xbf{}", r"rows\.jsonl:2: not JSON: .* \(the file begins with a byte order mark"),
        (b"[1, 2]", r"rows\.jsonl:2: the row is a JSON list: expected one JSON object"),
        (b'"text"', r"rows\.jsonl:2: the row is a JSON str"),
        (b'{"a": "\xff"}', r"rows\.jsonl:2: byte 7 of the line is not UTF-8"),
    ],
    ids=["cut off", "array", "nested without end", "long number", "byte order mark", "list", "string", "not UTF-8"],
)
def test_a_broken_line_is_refused_by_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    rows = iter_rows(lines_file(tmp_path, b'{"a": 1}', line))
    assert next(rows).columns == {"a": 1}
    with pytest.raises(DataError, match=message):
        next(rows)


def test_numbers_in_columns_that_are_not_read_are_not_judged(tmp_path: Path) -> None:
    """Python's json.dumps writes NaN; whether a line goes to the fast parser or to the strict one is all the same."""
    numbers = b'"a": NaN, "b": 1e999, "c": -Infinity'
    for line in (b"{" + numbers + b"}", b'{"text": "\\ud800", ' + numbers + b"}"):
        (row,) = iter_rows(lines_file(tmp_path, line))
        assert str([row.columns[name] for name in "abc"]) == "[nan, inf, -inf]"


@pytest.mark.parametrize("line_break", [b"", b"\n", b"\r\n"])
def test_the_line_limit_is_met_exactly(tmp_path: Path, line_break: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 12}' + line_break)
    assert len(list(iter_rows(path, max_line_bytes=9))) == 1
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the line is longer than 8 bytes"):
        list(iter_rows(path, max_line_bytes=8))


def test_an_overlong_line_is_never_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": "' + b"x" * 8_000_000 + b'"}\n')
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="longer than 1000 bytes"):
            list(iter_rows(path, max_line_bytes=1000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_a_file_is_never_held_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes((b'{"a": "' + b"x" * 10_000 + b'"}\n') * 800)
    tracemalloc.start()
    try:
        num_rows = sum(1 for _ in iter_rows(path))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_rows == 800
    assert peak_bytes < 1_000_000


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"rows\.jsonl holds no row"):
        list(iter_rows(path))


def test_a_path_that_is_no_preference_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    (tmp_path / "folder.jsonl").mkdir()
    for name, message in [
        ("absent.jsonl", r"absent\.jsonl does not exist: give one \.jsonl"),
        ("folder.jsonl", r"folder\.jsonl is a directory"),
        ("rows.csv", r"suffix '\.csv': give one \.jsonl, \.json \(JSON Lines\) or \.parquet file"),
    ]:
        with pytest.raises(DataError, match=message):
            list(iter_rows(tmp_path / name))


@pytest.fixture
def write_parquet(tmp_path: Path) -> Callable[..., Path]:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

    def write(rows: list[dict[str, object]]) -> Path:
        table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema([("a", pyarrow.int64())]) if not rows else None)
        parquet.write_table(table, tmp_path / "rows.parquet")
        return tmp_path / "rows.parquet"

    return write


def test_parquet_rows_come_in_order_with_their_number(write_parquet: Callable[..., Path]) -> None:
    written = [{"a": i, "turns": [{"role": "user", "content": str(i)}]} for i in range(200)]
    rows = list(iter_rows(write_parquet(written)))
    assert [row.columns for row in rows] == written
    assert [row.place.line for row in rows] == list(range(1, 201))


def test_a_broken_or_empty_parquet_file_is_refused(tmp_path: Path, write_parquet: Callable[..., Path]) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"broken\.parquet: not a readable Parquet file after row 0"):
        list(iter_rows(tmp_path / "broken.parquet"))
    with pytest.raises(DataError, match=r"rows\.parquet holds no row"):
        list(iter_rows(write_parquet([])))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'packparity\[parquet\]'"):
        list(iter_rows(tmp_path / "rows.parquet"))


def test_a_key_twice_in_one_object_is_refused(tmp_path: Path) -> None:
    """The later value would win without a word."""
    path = tmp_path / "twice.jsonl"
    path.write_text('{"a": 1}\n{"a": 1, "b": {"c": 1, "c": 2}}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"twice\.jsonl:2: the key 'c' occurs twice"):
        list(iter_rows(path))


def test_every_line_is_handed_over_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\r\n\n{"a": 2}')
    lines: list[bytes] = []
    assert len(list(iter_rows(path, on_block=lines.append))) == 2
    assert b"".join(lines) == path.read_bytes()

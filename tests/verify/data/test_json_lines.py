"""The fast parser decides nothing: whatever it takes, the strict one reads alike, and a key twice is never lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.data import json_lines
from verify.data.json_lines import iter_json_lines
from verify.data.rows import DataError, Row

# Texts that look like JSON: colons after quotes, blanks and backslashes.
texts = st.text(st.sampled_from(list('":\\ \tab{}[],é\u2028😀')), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
rows = st.dictionaries(texts, values, max_size=4)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : "), (",", "  \t:")])


def read(path: Path, content: bytes) -> list[Row]:
    path.write_bytes(content)
    return list(iter_json_lines(path, 2**20, lambda block: None))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines") / "rows.jsonl"


@given(st.lists(rows, min_size=1, max_size=5), separators, st.booleans())
def test_rows_come_back_as_they_were_written(
    path: Path, written: list[dict[str, Any]], separators: tuple[str, str], ensure_ascii: bool
) -> None:
    lines = [json.dumps(row, separators=separators, ensure_ascii=ensure_ascii) for row in written]
    found = read(path, "\n".join(lines).encode())
    assert [row.columns for row in found] == written
    assert [row.place.line for row in found] == list(range(1, len(written) + 1))


def with_keys_twice(value: object, twice: list[bool], separators: tuple[str, str]) -> str:
    """JSON in which the first key of objects occurs a second time at the end, where the next of ``twice`` says so."""
    comma, colon = separators
    if isinstance(value, list):
        return f"[{comma.join(with_keys_twice(item, twice, separators) for item in value)}]"
    if not isinstance(value, dict):
        return json.dumps(value)
    fields = [f"{json.dumps(key)}{colon}{with_keys_twice(inner, twice, separators)}" for key, inner in value.items()]
    if fields and twice and twice.pop():
        fields.append(f"{json.dumps(next(iter(value)))}{colon}0")
    return f"{{{comma.join(fields)}}}"


@given(rows, st.lists(st.booleans(), max_size=4), separators)
def test_a_key_twice_is_found_wherever_it_is(
    path: Path, row: dict[str, Any], twice: list[bool], separators: tuple[str, str]
) -> None:
    sound, line = json.dumps(row, separators=separators), with_keys_twice(row, list(twice), separators)
    if len(line) == len(with_keys_twice(row, [], separators)):
        assert [found.columns for found in read(path, f"{sound}\n{line}\n".encode())] == [row, row]
    else:
        with pytest.raises(DataError, match=r"rows\.jsonl:2: the key .* occurs twice in one object"):
            read(path, f"{sound}\n{line}\n".encode())


def test_what_most_files_hold_is_parsed_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(line: bytes, place: object) -> dict[str, Any]:
        raise AssertionError(f"parsed a second time: {line!r}")

    monkeypatch.setattr(json_lines, "_parse_strictly", refuse)
    turns = [{"role": "user", "content": 'Is "a: b" or "x": y meant, 10:30 or : 11? "é"'}]
    row = {"prompt": "p: q", "chosen": turns, "rejected": turns, "text": json.dumps({"a": "b: c"})}
    assert [found.columns for found in read(path, f"{json.dumps(row)}\n".encode() * 3)] == [row] * 3


@pytest.mark.parametrize(
    ("line", "is_encodable"), [('{"a": "\\ud83d"}', False), ('{"a": "\\ud83d\\ude00"}', True), ('{"a": "é"}', True)]
)
def test_half_a_surrogate_pair_is_never_called_encodable(path: Path, line: str, is_encodable: bool) -> None:
    (row,) = read(path, line.encode())
    assert row.is_encodable is is_encodable
    try:
        row.columns["a"].encode()
    except UnicodeEncodeError:
        assert not is_encodable


def test_lines_over_the_ends_of_blocks_are_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [{"number": i, "text": "x" * (i % 37)} for i in range(200)]
    content = b"".join(json.dumps(row).encode() + b"\r\n" for row in written)
    for size in (2, 7, 64, 1000):
        monkeypatch.setattr(json_lines, "_BLOCK_BYTES", size)
        blocks: list[bytes] = []
        path.write_bytes(content)
        found = list(iter_json_lines(path, 2**20, blocks.append))
        assert [row.columns for row in found] == written
        assert b"".join(blocks) == content


def test_keys_are_told_apart_in_lines_of_megabytes(path: Path) -> None:
    long = "x" * (5 * 2**20)
    path.write_bytes(f'{{"a": "{long}", "b": 1, "b": 2}}\n'.encode())
    with pytest.raises(DataError, match="the key 'b' occurs twice"):
        list(iter_json_lines(path, 2**24, lambda block: None))

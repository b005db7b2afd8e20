from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from reports.breakable import Breakable, broken_lines


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("dense-sdpa/row-per-group", 24, ["dense-sdpa/row-per-group"]),
        ("dense-sdpa/row-per-group", 23, ["dense-sdpa/", "row-per-group"]),
        ("dense-sdpa/row-per-group", 13, ["dense-sdpa/", "row-per-group"]),
        ("dense-sdpa/row-per-group", 12, ["dense-sdpa/", "row-per-", "group"]),
        ("a/b/c", 4, ["a/b/", "c"]),
        ("my_trainer.py:Mine", 13, ["my_trainer.", "py:Mine"]),
        ("packed", 3, ["packed"]),
        ("", 3, [""]),
    ],
)
def test_a_name_is_broken_after_a_slash_and_elsewhere_only_if_it_must(name: str, width: int, lines: list[str]) -> None:
    assert broken_lines(name, width) == lines


@given(st.text(alphabet="ab-/_. 漢"), st.integers(1, 12))
def test_the_lines_are_the_name(name: str, width: int) -> None:
    lines = broken_lines(name, width)
    assert "".join(lines) == name
    assert all(before[-1] in "/ -_." for before in lines[:-1])
    if all(len(part) * 2 <= width for part in name.replace(" ", "/").split("/") for part in [part + "/"]):
        assert all(before[-1] in "/ " for before in lines[:-1])


@pytest.mark.parametrize("width", [9, 20, 60])
def test_a_table_shows_a_name_whole_whatever_its_width(width: int) -> None:
    name = "[red]dense-sdpa/row-per-group[/red]:\x1b漢字漢字漢字"
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("", no_wrap=True)
    table.add_row(Breakable(name), "PASS")
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    console.print(table)
    lines = stream.getvalue().splitlines()
    shown = "".join(line.replace("PASS", "").strip() for line in lines)
    assert shown == name.replace("\x1b", "\\x1b")

"""A reproduction is there as a whole or not at all, and those of an earlier run go before a new one starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verify.shrink.folder import REPRODUCTIONS, FolderError, discard_reproductions, write_folder

FILES = {"run.sh": b"#!/bin/sh\n", "reproduction.json": b"{}\n"}


def test_a_folder_holds_what_was_given(tmp_path: Path) -> None:
    folder = write_folder(FILES, tmp_path / "new", "mine-float32")
    assert folder == Path(REPRODUCTIONS, "mine-float32")
    assert {p.name: p.read_bytes() for p in (tmp_path / "new" / folder).iterdir()} == FILES
    assert os.access(tmp_path / "new" / folder / "run.sh", os.X_OK)


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    names = [write_folder(FILES, tmp_path, "mine-float32").name for _ in range(3)]
    assert names == ["mine-float32", "mine-float32-2", "mine-float32-3"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(path: Path, mode: int) -> None:
        raise error

    monkeypatch.setattr(Path, "chmod", fail)
    with pytest.raises(error):
        write_folder(FILES, tmp_path, "mine-float32")
    assert list(tmp_path.iterdir()) == []


def test_earlier_reproductions_and_halves_go_and_other_things_stay(tmp_path: Path) -> None:
    write_folder(FILES, tmp_path, "mine-float32")
    parent = tmp_path / REPRODUCTIONS
    (parent / ".half.0123.partial").mkdir()
    (parent / "notes").mkdir()
    (parent / "notes" / "mine.txt").write_text("keep", encoding="utf-8")
    discard_reproductions(tmp_path)
    assert [path.name for path in parent.iterdir()] == ["notes"]
    (parent / "notes" / "mine.txt").unlink()
    (parent / "notes").rmdir()
    discard_reproductions(tmp_path)
    assert list(tmp_path.iterdir()) == []
    discard_reproductions(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / REPRODUCTIONS).write_text("", encoding="utf-8")
    with pytest.raises(FolderError, match="is a file: a folder is needed there"):
        discard_reproductions(tmp_path)

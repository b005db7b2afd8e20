"""A folder for results that a run made is not left behind empty."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from verify.cli.out_folder import no_empty_folder, out_folder


def test_the_last_named_folder_counts_however_it_is_written() -> None:
    assert out_folder(["check", "--quiet"]) is None
    assert out_folder(["check", "--out", "a"]) == Path("a")
    assert out_folder(["check", "--out=b", "--quiet"]) == Path("b")


def test_an_empty_folder_goes_and_one_with_results_stays(tmp_path: Path) -> None:
    empty, full, old = (tmp_path / name for name in ("empty", "full", "old"))
    old.mkdir()
    for folder in (empty, full, old):
        with suppress(KeyError), no_empty_folder(folder):
            folder.mkdir(exist_ok=True)
            if folder is full:
                (folder / "record.json").touch()
            raise KeyError
    assert (empty.exists(), full.exists(), old.exists()) == (False, True, True)

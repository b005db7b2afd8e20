"""What a run found is shown even where its files cannot be written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from reports.store import OutputError
from verify.cli.results import written_and_shown


def test_files_come_first_and_then_the_result_is_shown() -> None:
    done: list[str] = []

    def write() -> Sequence[Path]:
        done.append("written")
        return (Path("record.json"),)

    assert written_and_shown(write, lambda: done.append("shown")) == (Path("record.json"),)
    assert done == ["written", "shown"]


def test_a_disk_that_filled_up_does_not_cost_the_result() -> None:
    done: list[str] = []

    def write() -> Sequence[Path]:
        raise OutputError("cannot write results to out: No space left on device")

    with pytest.raises(OutputError, match="No space left on device"):
        written_and_shown(write, lambda: done.append("shown"))
    assert done == ["shown"]

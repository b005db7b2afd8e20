"""Records that earlier releases wrote: they are evidence, and can still be read and shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from reports import html, junit, markdown, terminal
from reports.store import read_record

RESULTS = sorted((Path(__file__).parents[2] / "docs" / "results").glob("*/record.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_a_kept_result_is_shown_whole_and_without_a_claim_that_faults_were_planted(path: Path) -> None:
    record = read_record(path)
    stream = io.StringIO()
    terminal.print_record(record, Console(file=stream, width=80))
    assert ("planted fault" in junit.render(record)) == bool(record.planted)
    for text in (stream.getvalue(), markdown.render(record), html.render(record)):
        assert record.verdict in text
        assert ("no fault was planted in this run" in text) == (not record.planted)
        assert "would have caught" not in text or record.planted
        assert "would not have seen" not in text or record.blind_spots


def test_there_are_results_of_version_1() -> None:
    assert any(read_record(path).schema_version == 1 for path in RESULTS)

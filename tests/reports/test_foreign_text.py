"""Names and messages that come from subjects: whatever they hold, a record can be written and a page shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.record import Record
from reports.store import read_record, record_json, write_reports
from reports.values import TEXT_LIMIT

FOREIGN = {
    "a lone surrogate": ("\ud800 and \udc80", "\\ud800 and \\udc80"),
    "line breaks": ("one\nPASS two\r\nthree", "one"),
    "control characters": ("\x1b[2J\x00\x07", "\\x1b[2J\\x00\\x07"),
    "megabytes": ("begin " + "x" * 3_000_000 + " end", "2,998,070 characters left out" ),
}  # fmt: skip


def replaced(value: Any, name: str, text: str) -> Any:
    """The content with every occurrence of a string replaced by another."""
    if isinstance(value, dict):
        return {key: replaced(item, name, text) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, name, text) for item in value]
    return text if value == name else value


@pytest.mark.parametrize(("text", "shown"), FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("where", ["subject", "reason"])
def test_a_record_with_foreign_text_can_be_written_read_and_rendered(
    small_record: Record, tmp_path: Path, where: str, text: str, shown: str
) -> None:
    reason = next(result.reasons[0] for result in small_record.results if result.verdict == "FAIL")
    name = small_record.subjects[0].name if where == "subject" else reason
    record = Record.model_validate(replaced(small_record.model_dump(), name, text))
    write_reports(record, tmp_path)
    assert record_json(read_record(tmp_path)) == record_json(record)
    for file in ("report.md", "report.html", "junit.xml"):
        content = (tmp_path / file).read_text(encoding="utf-8")
        assert len(content) < 3_000_000
        assert "\x1b" not in content
        escaped = content.replace("\\\\", "\\").replace("\\[", "[")
        assert shown in escaped, file


def test_a_text_that_was_cut_keeps_both_ends_and_is_not_cut_again(small_record: Record) -> None:
    text = "begin " + "x" * 50_000 + " end"
    once = Record.model_validate(small_record.model_dump() | {"notes": [text]}).notes[0]
    assert once.startswith("begin xxx")
    assert once.endswith("xxx end")
    assert len(once) <= TEXT_LIMIT
    assert Record.model_validate(small_record.model_dump() | {"notes": [once]}).notes[0] == once

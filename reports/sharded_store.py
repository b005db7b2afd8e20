"""Records of sharded parity on disk."""

from __future__ import annotations

from pathlib import Path

from reports.sharded_record import SHARDED_VERSION, ShardedRecord
from reports.store import JUNIT_FILE, read_of_kind, write_together

SHARDED_FILE = "sharded.json"
SHARDED_FILES = ("sharded.md", "sharded.html", JUNIT_FILE, SHARDED_FILE)
"""In the order in which they are put in place."""


def write_sharded(record: ShardedRecord, out_dir: Path) -> tuple[Path, ...]:
    """Write the record as Markdown, HTML, JUnit XML and JSON.

    Args:
        record: What to write.
        out_dir: Folder, created if it is missing; other files in it stay.

    Returns:
        The paths of the files; the JSON is the last.

    Raises:
        OutputError: The folder cannot be written.
    """
    # Here and not above: whoever only reads a record should not wait for what draws one.
    from reports import sharded_html, sharded_junit, sharded_markdown

    texts = (
        sharded_markdown.render(record),
        sharded_html.render(record),
        sharded_junit.render(record),
        sharded_json(record),
    )
    return write_together(dict(zip(SHARDED_FILES, texts, strict=True)), out_dir, SHARDED_FILES)


def sharded_json(record: ShardedRecord) -> str:
    """The record as JSON text; NaN and infinities as strings. Equal records give equal text."""
    return record.model_dump_json(indent=1) + "\n"


def read_sharded(path: Path) -> ShardedRecord:
    """Read a record, strictly.

    Args:
        path: A ``sharded.json``, or a folder that holds one.

    Returns:
        The record.

    Raises:
        RecordError: No such file, not JSON, another version, an unknown or missing field, or contents that contradict
            themselves. The message names the file.
    """
    return read_of_kind(
        path, SHARDED_FILE, ShardedRecord, kind="sharded", version=SHARDED_VERSION, what="sharded parity"
    )

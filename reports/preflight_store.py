"""Records of a preflight on disk."""

from __future__ import annotations

from pathlib import Path

from reports.preflight_consistency import inconsistencies
from reports.preflight_record import PREFLIGHT_VERSION, PreflightRecord
from reports.store import RecordError, read_of_kind, write_together

PREFLIGHT_FILE = "preflight.json"
PREFLIGHT_FILES = ("preflight.md", "preflight.html", PREFLIGHT_FILE)
"""In the order in which they are put in place."""


def write_preflight(record: PreflightRecord, out_dir: Path) -> tuple[Path, ...]:
    """Write the record as Markdown, HTML and JSON.

    Args:
        record: What to write.
        out_dir: Folder, created if it is missing; other files in it stay.

    Returns:
        The paths of the files; the JSON is the last.

    Raises:
        OutputError: The folder cannot be written.
    """
    # Here and not above: whoever only reads a record should not wait for what draws one.
    from reports import preflight_html, preflight_markdown

    texts = (preflight_markdown.render(record), preflight_html.render(record), preflight_json(record))
    return write_together(dict(zip(PREFLIGHT_FILES, texts, strict=True)), out_dir, PREFLIGHT_FILES)


def preflight_json(record: PreflightRecord) -> str:
    """The record as JSON text. Equal records give equal text."""
    return record.model_dump_json(indent=1) + "\n"


def read_preflight(path: Path) -> PreflightRecord:
    """Read a record, strictly.

    Args:
        path: A ``preflight.json``, or a folder that holds one.

    Returns:
        The record.

    Raises:
        RecordError: No such file, not JSON, another version, an unknown or missing field, or contents that contradict
            themselves. The message names the file.
    """
    record = read_of_kind(
        path, PREFLIGHT_FILE, PreflightRecord, kind="preflight", version=PREFLIGHT_VERSION, what="a preflight"
    )
    if problem := next(inconsistencies(record), None):
        where = path / PREFLIGHT_FILE if path.is_dir() else path
        raise RecordError(f"{where}: not a valid record of a preflight: {problem}")
    return record

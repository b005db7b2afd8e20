"""Records of model families on disk."""

from __future__ import annotations

import json
from pathlib import Path

from reports.families_record import FAMILIES_VERSION, FamiliesRecord
from reports.store import read_of_kind, write_together

FAMILIES_FILE = "families.json"
FAMILIES_FILES = ("families.md", "families.html", FAMILIES_FILE)
"""In the order in which they are put in place."""


def write_families(record: FamiliesRecord, out_dir: Path) -> tuple[Path, ...]:
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
    from reports import families_html, families_markdown

    texts = (families_markdown.render(record), families_html.render(record), families_json(record))
    return write_together(dict(zip(FAMILIES_FILES, texts, strict=True)), out_dir, FAMILIES_FILES)


def families_json(record: FamiliesRecord) -> str:
    """The record as JSON text. Equal records give equal text."""
    return json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_families(path: Path) -> FamiliesRecord:
    """Read a record, strictly.

    Args:
        path: A ``families.json``, or a folder that holds one.

    Returns:
        The record.

    Raises:
        RecordError: No such file, not JSON, another version, an unknown or missing field, or contents that contradict
            themselves. The message names the file.
    """
    return read_of_kind(path, FAMILIES_FILE, FamiliesRecord, kind="families", version=FAMILIES_VERSION, what="families")

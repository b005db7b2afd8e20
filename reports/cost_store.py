"""Records of measured cost on disk: strict reading, and writing that never leaves half a result behind."""

from __future__ import annotations

import json
from pathlib import Path

from reports.cost_record import COST_VERSION, CostRecord
from reports.store import read_of_kind, write_together

COST_FILE = "cost.json"
COST_FILES = ("cost.md", "cost.html", "cost-ratios.svg", "cost-lengths.svg", COST_FILE)
"""In the order in which they are put in place."""


def write_cost(record: CostRecord, out_dir: Path) -> tuple[Path, ...]:
    """Write the record as Markdown, HTML, two figures and JSON.

    Args:
        record: What to write.
        out_dir: Folder, created if it is missing; other files in it stay.

    Returns:
        The paths of the files; the JSON is the last.

    Raises:
        OutputError: The folder cannot be written.
    """
    from reports import cost_html, cost_markdown, cost_picture  # drawing takes a second to import

    texts = (
        cost_markdown.render(record),
        cost_html.render(record),
        cost_picture.alone(cost_picture.draw_ratios(record)),
        cost_picture.alone(cost_picture.draw_lengths(record)),
        cost_json(record),
    )
    return write_together(dict(zip(COST_FILES, texts, strict=True)), out_dir, COST_FILES)


def cost_json(record: CostRecord) -> str:
    """The record as JSON text. Equal records give equal text."""
    return json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_cost(path: Path) -> CostRecord:
    """Read a record, strictly.

    Args:
        path: A ``cost.json``, or a folder that holds one.

    Returns:
        The record.

    Raises:
        RecordError: No such file, not JSON, another version, an unknown or missing field, or contents that contradict
            themselves. The message names the file.
    """
    return read_of_kind(path, COST_FILE, CostRecord, kind="cost", version=COST_VERSION, what="cost")

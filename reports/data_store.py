"""Surveys of preference files on disk: strict reading, and writing that never leaves half a result behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from reports.data_record import DATA_REPORT_VERSION, DataReport
from reports.store import OutputError, RecordError, parse_json, problems_of, write_together

DATA_REPORT_FILE = "data-report.json"
DATA_REPORT_FILES = ("data-report.md", "data-report.html", DATA_REPORT_FILE)
"""In the order in which they are put in place."""


def check_can_be_written(out_dir: Path) -> None:
    """Refuse a folder that could not take the files, and leave everything as it is.

    Args:
        out_dir: The folder; it need not exist.

    Raises:
        OutputError: A file is in the way, or nothing can be created there.
    """
    there = out_dir
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise OutputError(f"cannot write results to {out_dir}: {there} is a file; name a folder that can be written")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write results to {out_dir}: {there} is read-only; name a folder that can be written")
    for name in DATA_REPORT_FILES:
        if (out_dir / name).is_dir():
            raise OutputError(f"cannot write results to {out_dir}: {name} is a folder there; name another folder")


def write_data_report(report: DataReport, out_dir: Path) -> tuple[Path, ...]:
    """Write the report as Markdown, HTML and JSON.

    Args:
        report: What to write.
        out_dir: Folder, created if it is missing; other files in it stay.

    Returns:
        The paths of the files; the JSON is the last.

    Raises:
        OutputError: The folder cannot be written.
    """
    from reports import data_html, data_markdown  # drawing takes a second to import

    texts = (data_markdown.render(report), data_html.render(report), data_report_json(report))
    return write_together(dict(zip(DATA_REPORT_FILES, texts, strict=True)), out_dir, DATA_REPORT_FILES)


def data_report_json(report: DataReport) -> str:
    """The report as JSON text. Equal reports give equal text."""
    return json.dumps(report.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_data_report(path: Path) -> DataReport:
    """Read a report, strictly.

    Args:
        path: A ``data-report.json``, or a folder that holds one.

    Returns:
        The report.

    Raises:
        RecordError: No such file, not JSON, another version, an unknown or missing field, or contents that contradict
            themselves. The message names the file.
    """
    if path.is_dir():
        path = path / DATA_REPORT_FILE
    content = parse_json(path)
    version = content.get("schema_version")
    if content.get("kind") != "data-report" or version != DATA_REPORT_VERSION or isinstance(version, bool):
        raise RecordError(
            f"{path}: kind {content.get('kind')!r} of schema_version {version!r}; "
            f"this program reads a data-report of version {DATA_REPORT_VERSION} here"
        )
    try:
        return DataReport.model_validate(content, strict=True)
    except ValidationError as error:
        raise RecordError(f"{path}: not a valid data report: {problems_of(error)}") from error

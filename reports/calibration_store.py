"""Calibrations on disk: strict reading, and writing that never leaves half a result behind."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from reports.calibration import CALIBRATION_VERSION, CalibrationRecord
from reports.store import RecordError, parse_json, problems_of, write_together

CALIBRATION_FILE = "calibration.json"
CALIBRATION_FILES = ("calibration.md", "calibration.svg", CALIBRATION_FILE)
"""In the order in which they are put in place."""


def write_calibration(record: CalibrationRecord, out_dir: Path) -> tuple[Path, ...]:
    """Write the calibration as Markdown, SVG and JSON.

    Args:
        record: What to write.
        out_dir: Folder, created if it is missing; other files in it stay.

    Returns:
        The paths of the files; the JSON is the last.

    Raises:
        OutputError: The folder cannot be written.
    """
    from reports import calibration_markdown, calibration_picture  # whoever only reads should not wait for matplotlib

    texts = (calibration_markdown.render(record), calibration_picture.draw(record), calibration_json(record))
    return write_together(dict(zip(CALIBRATION_FILES, texts, strict=True)), out_dir, CALIBRATION_FILES)


def calibration_json(record: CalibrationRecord) -> str:
    """The calibration as JSON text, a line for each entry of its lists; NaN and infinities as strings."""
    plain = json.loads(record.model_dump_json())
    fields = []
    for name, value in plain.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n  ".join(_compact(entry) for entry in value)
            text = f"[\n  {entries}\n ]"
        else:
            text = _compact(value)
        fields.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_calibration(path: Path) -> CalibrationRecord:
    """Read a calibration, strictly.

    Args:
        path: A ``calibration.json``, or a folder that holds one.

    Returns:
        The calibration.

    Raises:
        RecordError: No such file, not JSON, another version, an unknown or missing field, or contents that contradict
            themselves. The message names the file.
    """
    if path.is_dir():
        path = path / CALIBRATION_FILE
    content = parse_json(path)
    version = content.get("schema_version")
    if content.get("kind") != "calibration" or version != CALIBRATION_VERSION or isinstance(version, bool):
        raise RecordError(
            f"{path}: kind {content.get('kind')!r} of schema_version {version!r}; "
            f"this program reads a calibration of version {CALIBRATION_VERSION} here"
        )
    try:
        return CalibrationRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise RecordError(f"{path}: not a valid calibration: {problems_of(error)}") from error

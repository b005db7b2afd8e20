"""Forecasts on disk."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from reports.forecast_record import FORECAST_VERSION, ForecastRecord
from reports.store import RecordError, parse_json, problems_of, write_together

FORECAST_FILE = "forecast.json"
FORECAST_FILES = ("forecast.md", "forecast.html", FORECAST_FILE)
"""In the order in which they are put in place."""


def write_forecast(record: ForecastRecord, out_dir: Path) -> tuple[Path, ...]:
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
    from reports import forecast_html, forecast_markdown

    texts = (forecast_markdown.render(record), forecast_html.render(record), forecast_json(record))
    return write_together(dict(zip(FORECAST_FILES, texts, strict=True)), out_dir, FORECAST_FILES)


def forecast_json(record: ForecastRecord) -> str:
    """The record as JSON text. Equal records give equal text."""
    return json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_forecast(path: Path) -> ForecastRecord:
    """Read a record, strictly.

    Args:
        path: A ``forecast.json``, or a folder that holds one.

    Returns:
        The record.

    Raises:
        RecordError: No such file, not JSON, another version, an unknown or missing field, or contents that contradict
            themselves. The message names the file.
    """
    if path.is_dir():
        path = path / FORECAST_FILE
        if not path.exists():
            raise RecordError(f"{path.parent} holds no {FORECAST_FILE}: no run was finished there; name another folder")
    content = parse_json(path)
    version = content.get("schema_version")
    if content.get("kind") != "forecast" or version != FORECAST_VERSION or isinstance(version, bool):
        raise RecordError(
            f"{path}: kind {content.get('kind')!r} of schema_version {version!r}; "
            f"this program reads a forecast of version {FORECAST_VERSION} here"
        )
    try:
        return ForecastRecord.model_validate(content, strict=True)
    except ValidationError as error:
        raise RecordError(f"{path}: not a valid forecast: {problems_of(error)}") from error

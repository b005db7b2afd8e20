"""Forecasts on disk."""

from __future__ import annotations

import json
from pathlib import Path

from reports.forecast_record import FORECAST_VERSION, ForecastRecord
from reports.store import read_of_kind, write_together

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
    return read_of_kind(
        path, FORECAST_FILE, ForecastRecord, kind="forecast", version=FORECAST_VERSION, what="a forecast"
    )

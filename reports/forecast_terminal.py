"""A forecast on a terminal: a line for each path, and which wins."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from reports.forecast_overview import HEADER, PEAK_HEADER, cells, legend, peak_cells, title, verdict
from reports.forecast_record import ForecastRecord
from reports.words import printable

_WIDEST = 1000
"""Columns; wider than any table."""


def print_forecast(record: ForecastRecord, console: Console) -> None:
    """Print a forecast.

    Args:
        record: What to print.
        console: Where to.
    """
    _say(title(record), console, "bold")
    rows = [cells(record, path) for path in record.paths if path.peak is not None]
    if rows:
        _print_table(HEADER, rows, console)
        if said := legend(record):
            _say(said, console, "dim")
        _say("peak of a rank, GiB:", console, "dim")
        peaks = [peak_cells(path) for path in record.paths if path.peak is not None]
        _print_table(PEAK_HEADER, peaks, console)
    for path in record.paths:
        if path.reason:
            _say(f"{path.path}: not forecast: {path.reason}", console, "dim")
    for line in (*record.device.sources, *record.assumptions):
        _say(f"- {line}", console, "dim")
    _say(verdict(record), console, "bold green" if record.fitting else "bold red")


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """As a table, or where the terminal is too narrow for it value by value: no number is ever broken."""
    table = _table(header, rows)
    if Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum <= console.width:
        console.print(table)
        return
    for row in rows:
        _say(row[0], console, "bold")
        for name, cell in zip(header[1:], row[1:], strict=True):
            _say(f"  {name}: {cell}", console, "default")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _say(line: str, console: Console, style: str) -> None:
    console.print(Text(printable(line), style=style), soft_wrap=True)

"""Sharded parity on a terminal: a line for each subject and each check, then what is no PASS, then the verdict."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.breakable import Breakable
from reports.record_names import VerdictName
from reports.sharded_overview import (
    closing_line,
    data_line,
    not_applicable,
    objective_line,
    ranks_line,
    subject_rows,
    title,
)
from reports.sharded_record import AGAINST, ShardedRecord
from reports.words import number, printable

_STYLES: dict[VerdictName, str] = {
    "PASS": "bold green",
    "FAIL": "bold red",
    "ERROR": "bold magenta",
    "INCONCLUSIVE": "bold yellow",
    "NOT_APPLICABLE": "dim",
}
_MOST_SHOWN = 6


def print_sharded(record: ShardedRecord, console: Console) -> None:
    """Print a record.

    Args:
        record: What to print.
        console: Where to; its width and colours are respected.
    """
    console.print(Text(printable(f"packparity {record.tool_version} sharded: {title(record)}")), soft_wrap=True)
    console.print(Text(printable(ranks_line(record)), style="dim"), soft_wrap=True)
    if record.objective:
        console.print(Text(printable(f"objective: {objective_line(record)}"), style="dim"), soft_wrap=True)
    if record.data is not None:
        console.print(Text(printable(data_line(record.data)), style="dim"), soft_wrap=True)
    console.print(_subjects(record))
    if record.checks:
        console.print(_checks(record))
    left_out = not_applicable(record)
    more = (
        [f"and {len(left_out) - _MOST_SHOWN} more, in the report that --out writes"] if left_out[_MOST_SHOWN:] else []
    )
    _print_lines("Not applicable", [*left_out[:_MOST_SHOWN], *more], console)
    survived = [
        f"{planted.fault}, {planted.precision}: {planted.what}; not caught"
        for planted in record.planted
        if not planted.caught_by
    ]
    _print_lines("Planted faults that were not caught", survived, console)
    _print_lines("Notes", record.notes, console)
    _print_lines("Why", record.reasons, console)
    console.print(_labelled(record.verdict, closing_line(record)), soft_wrap=True)


def _subjects(record: ShardedRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("parity", "precision", "verdict", "passed", *(f"to {against}" for against in AGAINST)):
        table.add_column(column, no_wrap=column == "verdict")
    for row in subject_rows(record):
        verdict = Text(row.verdict, style=_STYLES[row.verdict])
        passed = f"{row.passed} of {row.judged}" if row.judged else ""
        table.add_row(Breakable(row.subject), row.precision, verdict, passed, *row.worst)
    table.caption = "to: largest measured / budget" if record.parity else None
    table.caption_justify = "left"
    return table


def _checks(record: ShardedRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("check", "precision", "verdict", "values", "measured / allowed"):
        table.add_column(column)
    for check in record.checks:
        verdict = Text(check.verdict, style=_STYLES[check.verdict])
        table.add_row(check.check, check.precision, verdict, f"{check.num_compared:,}", number(check.ratio))
    return table


def _print_lines(heading: str, lines: list[str], console: Console) -> None:
    if lines:
        console.print(Text(heading, style="bold"))
        for line in lines:
            console.print(Padding(Text(printable(line)), (0, 0, 0, 2)))


def _labelled(verdict: VerdictName, text: str) -> Text:
    return Text.assemble((verdict, _STYLES[verdict]), "  ", printable(text))

"""Model families on a terminal: one line a family, its ways of calling as letters."""

from __future__ import annotations

from string import ascii_uppercase

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.breakable import Breakable
from reports.families_overview import measured, reasons, score
from reports.families_record import FamiliesRecord, WayOutcome, WayRecord
from reports.words import printable

_STYLES: dict[WayOutcome, str] = {
    "isolated": "green",
    "leaks": "bold red",
    "other-values": "red",
    "refused": "dim",
    "unresolved": "yellow",
}
_LEGEND = (
    "ok: isolated; ok~: isolated, but for rounding; a number: LEAKS so much of a full leak; "
    "other: nothing leaks, and yet other values; err: refused; ?: unresolved"
)


def print_families(record: FamiliesRecord, console: Console) -> None:
    """Print one line a family, and how many isolate.

    Args:
        record: What to print.
        console: Where to. The names of the ways would take twice the width of most.
    """
    letters = dict(zip(record.ways, ascii_uppercase, strict=False))
    families = measured(record)
    if families:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("family")
        table.add_column("positions", no_wrap=True)
        for way in record.ways:
            table.add_column(letters.get(way, way), no_wrap=True)
        for family in families:
            cells = [Text(_cell(way), style=_STYLES[way.outcome]) for way in family.ways]
            table.add_row(Breakable(family.model_type), family.positions, *cells)
        console.print(table)
        console.print(Text(_LEGEND, style="dim"))
        console.print()
    for way, call in record.ways.items():
        isolated, leaking = record.count(way, "isolated"), record.count(way, "leaks")
        counts = f"{isolated} isolate, {leaking} leak"
        console.print(Text(printable(f"{letters.get(way, '')} {way}: {counts}   {call}".strip())), soft_wrap=True)
    for family in record.families:
        if not family.ways:
            _print_dim(f"{family.model_type}: {family.state}: {family.reason}", console)
    for model_type, ways, reason in reasons(families):
        _print_dim(f"{model_type}: {', '.join(f'{way.way} {way.outcome}' for way in ways)}: {reason}", console)


def _cell(way: WayRecord) -> str:
    match way.outcome:
        case "isolated":
            return "ok" if way.bit_identical else "ok~"
        case "leaks":
            return score(way)
        case "other-values":
            return "other"
        case "refused":
            return "err"
        case "unresolved":
            return "?"


def _print_dim(line: str, console: Console) -> None:
    console.print(Text(printable(line), style="dim"), soft_wrap=True)

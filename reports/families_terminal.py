"""Model families on a terminal: one line a family."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.families_record import FamiliesRecord, FamilyRecord, WayOutcome, shown
from reports.words import printable

_STYLES: dict[WayOutcome, str] = {
    "isolated": "green",
    "leaks": "bold red",
    "other-values": "red",
    "refused": "dim",
    "unresolved": "yellow",
}


def print_families(record: FamiliesRecord, console: Console) -> None:
    """Print one line a family, and how many isolate.

    Args:
        record: What to print.
        console: Where to.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("family", "positions", *record.ways):
        table.add_column(heading, overflow="fold")
    for family in record.families:
        if family.ways:
            cells = [Text(shown(way), style=_STYLES[way.outcome]) for way in family.ways]
            table.add_row(printable(family.model_type), family.positions, *cells)
    if table.row_count:
        console.print(table)
    for family in record.families:
        for line in _reasons(family):
            console.print(Text(printable(line), style="dim"), soft_wrap=True)
    for way, call in record.ways.items():
        isolated, leaking = record.count(way, "isolated"), record.count(way, "leaks")
        console.print(Text(printable(f"{way}: {isolated} isolate, {leaking} leak   {call}")), soft_wrap=True)


def _reasons(family: FamilyRecord) -> list[str]:
    if not family.ways:
        return [f"{family.model_type}: {family.state}: {family.reason}"]
    ways: dict[str, list[str]] = {}
    for way in family.ways:
        if way.reason:
            ways.setdefault(way.reason, []).append(f"{way.way} {way.outcome}")
    return [f"{family.model_type}: {', '.join(names)}: {reason}" for reason, names in ways.items()]

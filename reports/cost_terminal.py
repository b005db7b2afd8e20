"""Measured cost on a terminal: a table for each workload, what was recorded elsewhere, then the headline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports import cost_overview as overview
from reports.cost_record import CostRecord
from reports.words import plural, printable

_COLUMNS = {
    "path": "path",
    "median s": "median s",
    "CPU s": "CPU s",
    "pairs/s": "pairs/s",
    "peak": "peak",
    "time / best": "time / best unpacked",
    "memory / best": "memory / best unpacked",
}
"""Columns that a terminal of ordinary width has room for, by what they are called there; the written report has all."""


def print_cost(record: CostRecord, console: Console) -> None:
    """Print the tables.

    Args:
        record: What to print.
        console: Where to.
    """
    places = [overview.FIGURE_COLUMNS.index(column) for column in _COLUMNS.values()]
    for workload in record.workloads:
        console.print(
            Text(printable(f"{workload.name}: {workload.source}; {plural(workload.num_rounds, 'step')}"), style="bold")
        )
        rows = ([row[place] for place in places] for row in overview.figure_rows(workload))
        _print_table(tuple(_COLUMNS), rows, console)
    if held_out := overview.held_out_rows(record):
        console.print(Text("held out, after training", style="bold"))
        _print_table(overview.HELD_OUT_COLUMNS, map(overview.cells, held_out), console)
    if record.recorded:
        console.print(Text(printable(f"recorded elsewhere ({record.recorded[0].check}), and here"), style="bold"))
        # Why something was not measured is said below.
        _print_table(overview.RECORDED_COLUMNS[1:-1], (row[1:-1] for row in overview.recorded_rows(record)), console)
    for line in (*record.notes, f"memory: {record.memory_meaning}"):
        console.print(Text(printable(line), style="dim"), soft_wrap=True)
    for line in overview.absent(record):
        console.print(Text(printable(line)), soft_wrap=True)
    for line in overview.headline(record):
        console.print(Text(printable(line)), soft_wrap=True)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)

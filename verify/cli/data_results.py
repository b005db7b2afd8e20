"""What ``packparity data`` and ``packparity simulate`` have in common: words of their options, and showing a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from reports.data_record import DataReport

HELP_MODEL = "Model whose FLOPs are predicted, named as in check: a published name, a shape file or a checkpoint."
HELP_ROW_LIMIT = "Slots of a row in sequence packing, in the unit of the lengths."
HELP_RANKS = "Data-parallel ranks."
HELP_STEP = "Groups (a pair is one) that a rank takes in a step."


def show(report: DataReport, out: Path | None, *, as_json: bool) -> NoReturn:
    """Write a report, print it, and end with its exit status.

    Args:
        report: What was found.
        out: Folder for the files. Only now, and all at once: bad input leaves it, and results in it, as they were.
        as_json: Print the record rather than tables.

    Raises:
        typer.Exit: Always; status 1 if packing cannot be used.
        OutputError: The folder cannot be written.
    """
    from rich.console import Console

    from reports.data_store import data_report_json, write_data_report
    from reports.data_terminal import print_data_report

    written = write_data_report(report, out) if out is not None else ()
    if as_json:
        sys.stdout.write(data_report_json(report))
    else:
        console = Console()
        print_data_report(report, console)
        for path in written:
            console.print(str(path), highlight=False, soft_wrap=True)
    raise typer.Exit(1 if report.advice.advice == "cannot-be-used" else 0)

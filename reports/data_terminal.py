"""A survey of a preference file on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.breakable import Breakable
from reports.data_overview import Section, headline, sections, summary
from reports.data_record import Advice, DataReport
from reports.words import printable

_NAME_CELLS = 20
STYLES: dict[Advice, str] = {"pays": "bold green", "does-not-pay": "bold", "cannot-be-used": "bold red"}


def print_data_report(report: DataReport, console: Console) -> None:
    """Print a report.

    Args:
        report: What to print.
        console: Where to.
    """
    console.print(render(report))


def render(report: DataReport) -> RenderableType:
    """A report as something that rich can print: the tables first, the recommendation last.

    Args:
        report: What to show.
    """
    parts: list[RenderableType] = [Text(printable(summary(report)))]
    for section in sections(report):
        parts += [Text(), Text(section.title, style="bold")]
        if section.rows:
            parts.append(_table(section))
        if section.lines:
            parts.append(Padding(Text(printable("\n".join(section.lines)), style="dim"), (0, 0, 0, 2)))
    parts += [Text(), Text(headline(report), style=STYLES[report.advice.advice])]
    parts.append(Padding(Text(printable("\n".join(report.advice.reasons))), (0, 0, 0, 2)))
    return Group(*parts)


def _table(section: Section) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    shown = len(section.header) - section.num_wide_only
    for index, heading in enumerate(section.header[:shown]):
        # Only headings may be broken, and long names.
        least = min(max(len(row[index]) for row in section.rows), _NAME_CELLS)
        table.add_column(heading, justify="right" if index else "left", overflow="fold", min_width=least)
    for name, *cells in section.rows:
        table.add_row(Breakable(name), *(Text(printable(cell), no_wrap=True) for cell in cells[: shown - 1]))
    return table

"""Two results side by side on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports.breakable import Breakable
from reports.difference import Difference, closing_line, named
from reports.words import number


def print_difference(difference: Difference, console: Console) -> None:
    """Print what differs between two results; of ratios those that moved.

    Args:
        difference: What to print.
        console: Where to.
    """
    console.print(render(difference))


def render(difference: Difference) -> RenderableType:
    """What differs between two results as something that rich can print.

    Args:
        difference: What to show.

    Returns:
        Settings, verdicts and ratios that differ, and a closing line.
    """
    before, after = difference.titles
    parts: list[RenderableType] = [Text(f"{difference.kind}\nbefore  {before}\nafter   {after}")]
    settings = [(change.what, change.before, change.after) for change in difference.settings]
    verdicts = named(difference.verdicts)
    ratios = [(pair.what, number(pair.before), number(pair.after)) for pair in difference.moved]
    for title, rows in (("settings", settings), ("verdicts", verdicts), (difference.what_ratios, ratios)):
        if rows:
            parts += [Text(), _table(title, rows)]
    parts += [Text(), Text(closing_line(difference), style="bold")]
    return Group(*parts)


def _table(title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "before", "after"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(Breakable, row))
    return table

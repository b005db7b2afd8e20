"""Names in a table of a terminal, broken where a reader would break them and not in the middle of a word."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from reports.words import printable

# Where a name may be broken, best first: after a slash or blank, then after other punctuation.
_SEPARATORS = (r"(?<=[/\s])", r"(?<=[-_.:])")


@dataclass(frozen=True, slots=True)
class Breakable:
    """A name as something that rich can print, in as many lines as the width asks for.

    Args:
        name: Any text; it is shown as text, never read as markup.
    """

    name: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        lines = printable(self.name).splitlines() or [""]
        parts = [part for line in lines for part in re.split(_SEPARATORS[0], line)]
        widest = Measurement(max(map(cell_len, parts)), max(map(cell_len, lines)))
        return widest.with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = (
            broken for line in printable(self.name).splitlines() for broken in broken_lines(line, options.max_width)
        )
        yield Text("\n".join(lines), overflow="fold")


def broken_lines(name: str, width: int) -> list[str]:
    """Break a name into lines.

    >>> broken_lines("dense-sdpa/row-per-group", 17)
    ['dense-sdpa/', 'row-per-group']

    Args:
        name: One line of text.
        width: Cells that a line may take.

    Returns:
        Lines that make up the name again. Only a word that is itself wider than ``width`` gives a line that is.
    """
    lines = [name]
    for separator in _SEPARATORS:
        lines = [broken for line in lines for broken in _packed(re.split(separator, line), width)]
    return lines


def _packed(parts: list[str], width: int) -> list[str]:
    """Join parts to lines, each as long as it fits."""
    lines = [parts[0]]
    for part in parts[1:]:
        if cell_len(lines[-1] + part) <= width:
            lines[-1] += part
        else:
            lines.append(part)
    return lines

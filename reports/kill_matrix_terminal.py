"""A kill matrix on a terminal: one line per planted fault, then what did not go as it must."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.breakable import Breakable
from reports.kill_matrix import KillMatrix, MutationRecord
from reports.kill_matrix_overview import (
    COLUMNS,
    LEGEND,
    closing_line,
    hidden,
    mark,
    needs_attention,
    sole_checks,
    weak,
)
from reports.words import number, printable

_GOOD, _BAD = "green", "bold red"
_HEADINGS = dict(zip(COLUMNS, ("lp", "rf", "rw", "mg", "ls", "gr", "st", "pk", "ex"), strict=True))
"""Check to a heading that leaves room on a terminal of 80 columns."""


def print_kill_matrix(matrix: KillMatrix, console: Console) -> None:
    """Print a kill matrix.

    Args:
        matrix: What to print.
        console: Where to.
    """
    console.print(render(matrix))


def render(matrix: KillMatrix) -> RenderableType:
    """A kill matrix as something that rich can print.

    Args:
        matrix: What to show.

    Returns:
        The matrix, what needs attention, faults caught weakly, not at all or by one check alone, a closing line.
    """
    parts: list[RenderableType] = [_table(matrix, dtype) for dtype in dict.fromkeys(m.dtype for m in matrix.mutations)]
    headings = ", ".join(f"{heading} {COLUMNS[check]}" for check, heading in _HEADINGS.items())
    parts.append(Text(f"{headings}\n{LEGEND}", style="dim"))
    for mutation in needs_attention(matrix):
        parts += [Text(), Text(printable(f"{mutation.outcome}: {mutation.label}, {mutation.dtype}"), style=_BAD)]
        parts.append(_indented([mutation.what, *mutation.reasons]))
    if weakly := weak(matrix):
        parts += [Text("\nCaught with less margin than wanted", style="bold")]
        parts.append(_indented([f"{m.label}, {m.dtype}: {number(m.deciding_margin)}" for m in weakly]))
    if invisible := hidden(matrix):
        parts += [Text("\nHidden by rounding, as expected", style="bold")]
        parts.append(_indented([f"{m.label}, {m.dtype}: {number(m.margin)}" for m in invisible]))
    if alone := sole_checks(matrix):
        parts += [Text("\nCaught by one check alone", style="bold")]
        parts.append(_indented([f"{check}: {', '.join(names)}" for check, names in alone.items()]))
    if matrix.kernels:
        parts += [Text("\nNoisy kernels", style="bold")]
        parts.append(_indented([f"{kernel.name}: {kernel.what}" for kernel in matrix.kernels]))
    if matrix.notes:
        parts += [Text("\nNotes", style="bold"), _indented(matrix.notes)]
    style = _GOOD if matrix.verdict == "PASS" else _BAD
    parts += [Text(), Text.assemble((matrix.verdict, style), "  ", closing_line(matrix))]
    return Group(*parts)


def _table(matrix: KillMatrix, dtype: str) -> Table:
    table = Table(title=dtype, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("planted")
    table.add_column("outcome", no_wrap=True)
    table.add_column("x\nbudget", justify="right", no_wrap=True)
    table.add_column("weakest\ncase", justify="right", no_wrap=True)
    for heading in _HEADINGS.values():
        table.add_column(heading, no_wrap=True)
    for mutation in (m for m in matrix.mutations if m.dtype == dtype):
        table.add_row(
            Breakable(mutation.label),
            _outcome(mutation),
            number(mutation.margin),
            number(mutation.weakest_margin),
            *(mark(mutation, check) for check in COLUMNS),
        )
    return table


def _outcome(mutation: MutationRecord) -> Text:
    return Text(mutation.outcome, style=_GOOD if mutation.as_wanted else _BAD)


def _indented(lines: list[str]) -> Padding:
    return Padding(Text(printable("\n".join(lines))), (0, 0, 0, 2))

"""A kill matrix as GitHub Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.kill_matrix import KillMatrix, MutationRecord
from reports.kill_matrix_overview import (
    COLUMNS,
    LEGEND,
    closing_line,
    hidden,
    mark,
    needs_attention,
    sole_checks,
    strongest,
    weak,
)
from reports.markdown import escape
from reports.words import NONE, depth, number, setting


def render(matrix: KillMatrix) -> str:
    """Render as GitHub Markdown.

    Args:
        matrix: The kill matrix.

    Returns:
        Markdown; text that comes from the run is escaped.
    """
    return "\n\n".join(_blocks(matrix)) + "\n"


def _blocks(matrix: KillMatrix) -> Iterable[str]:
    yield f"# {matrix.verdict}: planted faults against the checks"
    yield f"**{matrix.verdict}** · {escape(closing_line(matrix))}"
    yield escape(
        f"packparity {matrix.tool_version}, {matrix.model.name}, {depth(matrix.model)}; objective: "
        f"{setting(matrix.objective)}; {len(matrix.cases)} cases; {number(matrix.timing.total_s)} s"
    )
    if attention := needs_attention(matrix):
        yield "## Not as it must be"
        yield _bullets(f"{m.outcome}: {m.label}, {m.dtype}: {m.what} {'; '.join(m.reasons)}" for m in attention)
    if weakly := weak(matrix):
        yield "## Caught with less margin than wanted"
        yield _bullets(f"{m.label}, {m.dtype}: {number(m.deciding_margin)}" for m in weakly)
    if invisible := hidden(matrix):
        yield "## Hidden by rounding, as expected"
        yield _bullets(f"{m.label}, {m.dtype}: {number(m.margin)}; {m.invisible_where}" for m in invisible)
    if alone := sole_checks(matrix):
        yield "## Caught by one check alone"
        yield _bullets(f"{check}: {', '.join(names)}" for check, names in alone.items())
    yield "## Planted faults"
    yield _table(matrix.of_kind("fault"))
    yield LEGEND
    yield "## Harmless changes"
    yield _table(matrix.of_kind("equivalent"))
    if matrix.kernels:
        yield "## Noisy kernels"
        yield _bullets(f"{kernel.name}: {kernel.what} Harmless: {kernel.why_harmless}." for kernel in matrix.kernels)
    yield "## What they are"
    yield "\n".join(
        ["| name | what is different | what it does to values | imitates |", "| --- | --- | --- | --- |"]
        + [
            f"| {escape(m.name)} | {escape(m.what)} | {escape(m.signature)} | {', '.join(m.imitates) or NONE} |"
            for m in {m.name: m for m in matrix.mutations}.values()
        ]
    )
    if matrix.notes:
        yield "## Notes"
        yield _bullets(matrix.notes)


def _table(mutations: Sequence[MutationRecord]) -> str:
    header = [
        "name",
        "stage",
        "dtype",
        "outcome",
        "measured / budget",
        "weakest case",
        *COLUMNS.values(),
        "worst place",
    ]
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    for m in mutations:
        outcome = m.outcome if m.as_wanted else f"**{m.outcome}**"
        worst = strongest(m)
        cells = [escape(m.label), m.stage, m.dtype, outcome, number(m.margin), number(m.weakest_margin)]
        cells += [mark(m, check) for check in COLUMNS]
        cells.append(escape(f"{worst.case}: {worst.where}" if worst and worst.case else worst.where if worst else NONE))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)

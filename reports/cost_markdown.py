"""Measured cost as GitHub Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports import cost_overview as overview
from reports.cost_record import CostRecord
from reports.markdown import escape
from reports.recorded_ratios import RECORDED_HELD_OUT
from reports.words import plural, setting


def render(record: CostRecord) -> str:
    """Render as Markdown.

    Args:
        record: The record.

    Returns:
        A whole document; equal records give equal text.
    """
    return "\n\n".join(_blocks(record)) + "\n"


def _blocks(record: CostRecord) -> Iterable[str]:
    yield "# What training steps cost"
    yield escape(overview.summary(record))
    yield _list([*overview.headline(record), *overview.absent(record)])
    yield "![Ratios](cost-ratios.svg)\n\n![Time and memory against length](cost-lengths.svg)"
    if record.recorded:
        yield "## Recorded elsewhere, and here"
        yield _table(overview.RECORDED_COLUMNS, overview.recorded_rows(record))
        yield "In what the two runs differ:"
        yield _table(("", "recorded", "here"), [(c.what, c.recorded, c.here) for c in record.conditions])
    yield "## Paths"
    yield _table(overview.PATH_COLUMNS, overview.path_rows(record))
    for workload in record.workloads:
        yield f"## {escape(workload.name)}"
        yield escape(f"{workload.source}; {plural(workload.num_rounds, 'step')} of each path, seed {workload.seed}")
        yield _table(overview.FIGURE_COLUMNS, overview.figure_rows(workload))
        yield _table(overview.RATIO_COLUMNS, overview.ratio_rows(workload))
    if held_out := overview.held_out_rows(record):
        yield "## Held out, after training"
        yield "A tie (margin 0) counts as one half."
        yield _table(overview.HELD_OUT_COLUMNS, map(overview.cells, held_out))
    if record.preset == "headline":
        yield "Recorded, sparse minus dense: " + ", ".join(
            f"{name} {value:+}" for name, value in RECORDED_HELD_OUT.items()
        )
    yield "## How it was measured"
    yield _list([*record.procedure, f"memory: {record.memory_meaning}"])
    yield "## Not measured"
    yield _list(record.not_measured)
    if record.notes:
        yield "## Notes"
        yield _list(record.notes)
    yield "## Machine and model"
    yield _table(("", ""), [(name, setting(value)) for name, value in overview.facts(record).items()])
    yield f"{escape(overview.closing(record))}: `{' '.join(record.command)}`"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines) or "- nothing"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[escape(cell) for cell in line] for line in (header, *rows)]
    lines.insert(1, ["---"] * len(header))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""A forecast as GitHub Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.forecast_overview import (
    HEADER,
    PEAK_HEADER,
    TIME_HEADER,
    cells,
    legend,
    peak_cells,
    time_cells,
    title,
    verdict,
)
from reports.forecast_record import ForecastRecord
from reports.markdown import escape


def render(record: ForecastRecord) -> str:
    """Render as Markdown.

    Args:
        record: The record.

    Returns:
        A whole document; equal records give equal text.
    """
    return "\n\n".join(_blocks(record)) + "\n"


def _blocks(record: ForecastRecord) -> Iterable[str]:
    yield "# Forecast of a training step"
    yield escape(title(record))
    yield f"**{escape(verdict(record))}**"
    yield "From shapes alone: no weights, and nothing was run on that device."
    forecast = [path for path in record.paths if path.peak is not None]
    if forecast:
        yield _table(HEADER, [cells(record, path) for path in record.paths])
        if said := legend(record):
            yield said
        yield "## Peak of a rank, GiB"
        yield _table(PEAK_HEADER, [peak_cells(path) for path in forecast])
        yield "## Least seconds by phase"
        yield _table(TIME_HEADER, [time_cells(path) for path in forecast])
    yield "## Assumptions"
    yield "\n".join(f"- {escape(line)}" for line in (*record.device.sources, *record.assumptions))
    if any(path.terms for path in forecast):
        yield "## FLOPs, term by term"
        names = list(dict.fromkeys(term.name for path in forecast for term in path.terms))
        flops = [{term.name: term.flops for term in path.terms} for path in forecast]
        yield _table(
            ("term", *(path.path for path in forecast)),
            [
                *((name, *(f"{of_path.get(name, 0):,}" for of_path in flops)) for name in names),
                ("sum, as counted", *(f"{path.counted_flops:,}" for path in forecast)),
                ("computed by kernels that skip", *(f"{path.computed_flops:,}" for path in forecast)),
            ],
        )
    yield (
        f"packparity {escape(record.tool_version)}, {escape(record.created_utc)}, {record.elapsed_s:.0f} s: "
        f"`{' '.join(record.command)}`"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

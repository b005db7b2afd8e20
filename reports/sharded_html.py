"""Sharded parity as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from reports.page import page_environment
from reports.sharded_overview import (
    closing_line,
    data_rows,
    not_applicable,
    objective_line,
    planted_line,
    ranks_line,
    subject_rows,
    title,
)
from reports.sharded_record import AGAINST, ShardedRecord
from reports.words import count, number


def render(record: ShardedRecord) -> str:
    """Render as HTML.

    Args:
        record: The record.

    Returns:
        A whole page. Text that comes from the run is escaped; equal records give equal text.
    """
    environment = page_environment()
    environment.filters.update(number=number, count=count)
    return (
        environment.get_template("sharded.html.j2").render(
            record=record,
            title=title(record),
            closing=closing_line(record),
            ranks=ranks_line(record),
            planted=planted_line(record),
            against=AGAINST,
            objective=objective_line(record),
            rows=subject_rows(record),
            data=data_rows(record.data) if record.data is not None else {},
            not_applicable=not_applicable(record),
        )
        + "\n"
    )

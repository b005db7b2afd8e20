"""A preflight as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from reports.page import page_environment
from reports.preflight_overview import facts, headline, measures, rows, settings
from reports.preflight_record import Outcome, PreflightRecord

_STYLES: dict[Outcome, str] = {"GO": "pass", "NO-GO": "fail", "ABSTAINS": "inconclusive", "MEASURED": ""}


def render(record: PreflightRecord) -> str:
    """Render as HTML.

    Args:
        record: The record.

    Returns:
        A whole page. Text that comes from the run is escaped; equal records give equal text.
    """
    environment = page_environment()
    environment.filters.update(measures=measures)
    page = environment.get_template("preflight.html.j2").render(
        record=record,
        headline=headline(record),
        rows=rows(record),
        facts=facts(record) | settings(record),
        styles=_STYLES,
    )
    return page + "\n"

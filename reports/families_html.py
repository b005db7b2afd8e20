"""Model families as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from reports.families_overview import measured, reasons, shown, summary
from reports.families_record import OUTCOMES, FamiliesRecord, WayOutcome
from reports.page import page_environment

_STYLES: dict[WayOutcome, str] = {
    "isolated": "pass",
    "leaks": "fail",
    "other-values": "fail",
    "refused": "not_applicable",
    "unresolved": "inconclusive",
}


def render(record: FamiliesRecord) -> str:
    """Render as HTML.

    Args:
        record: The record.

    Returns:
        A whole page. Text that comes from the run is escaped; equal records give equal text.
    """
    environment = page_environment()
    environment.filters.update(shown=shown)
    found = measured(record)
    return (
        environment.get_template("families.html.j2").render(
            record=record,
            summary=summary(record),
            outcomes=OUTCOMES,
            measured=found,
            missing=[family for family in record.families if not family.ways],
            reasons=reasons(found),
            styles=_STYLES,
        )
        + "\n"
    )

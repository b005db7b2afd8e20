"""A survey of a preference file as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from markupsafe import Markup

from reports import data_picture
from reports.data_overview import headline, sections, summary
from reports.data_record import DataReport
from reports.page import page_environment

_STAMPS = {"pays": "pass", "does-not-pay": "not_applicable", "cannot-be-used": "fail"}


def render(report: DataReport) -> str:
    """Render as HTML.

    Args:
        report: The report.

    Returns:
        A whole page. Text that comes from the file is escaped; equal reports give equal text.
    """
    environment = page_environment()
    return (
        environment.get_template("data_report.html.j2").render(
            report=report,
            headline=headline(report),
            stamp=_STAMPS[report.advice.advice],
            summary=summary(report),
            sections=sections(report),
            # Drawn by this package from numbers and its own words only.
            picture=Markup(data_picture.draw(report)),
        )
        + "\n"
    )

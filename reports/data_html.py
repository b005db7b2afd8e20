"""A survey of a preference file as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from reports import data_picture, words
from reports.data_overview import headline, sections, summary
from reports.data_record import DataReport

_STAMPS = {"pays": "pass", "does-not-pay": "not_applicable", "cannot-be-used": "fail"}


def render(report: DataReport) -> str:
    """Render as HTML.

    Args:
        report: The report.

    Returns:
        A whole page. Text that comes from the file is escaped; equal reports give equal text.
    """
    environment = Environment(
        loader=PackageLoader("reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
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


def _visible(value: object) -> object:
    return words.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

"""A forecast as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from markupsafe import Markup

from reports import forecast_overview, forecast_picture
from reports.forecast_record import ForecastRecord
from reports.page import page_environment


def render(record: ForecastRecord) -> str:
    """Render as HTML.

    Args:
        record: The record.

    Returns:
        A whole page. Text that comes from the run is escaped; equal records give equal text.
    """
    template = page_environment().get_template("forecast.html.j2")
    forecast = [path for path in record.paths if path.peak is not None]
    page = template.render(
        record=record,
        forecast=forecast,
        overview=forecast_overview,
        lines=[forecast_overview.cells(record, path) for path in record.paths],
        peaks=[forecast_overview.peak_cells(path) for path in forecast],
        times=[forecast_overview.time_cells(path) for path in forecast],
        picture=Markup(forecast_picture.draw(record)),
    )
    return page + "\n"

"""Measured cost as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from markupsafe import Markup

from reports import cost_overview as overview
from reports import cost_picture, words
from reports.cost_record import CostRecord
from reports.page import page_environment
from reports.recorded_ratios import RECORDED_HELD_OUT


def render(record: CostRecord) -> str:
    """Render as HTML.

    Args:
        record: The record.

    Returns:
        A whole page. Text that comes from the run is escaped; equal records give equal text.
    """
    environment = page_environment()
    environment.filters.update(setting=words.setting)
    return (
        environment.get_template("cost.html.j2").render(
            record=record,
            overview=overview,
            held_out=[overview.cells(row) for row in overview.held_out_rows(record)],
            recorded_held_out=RECORDED_HELD_OUT if record.preset == "headline" else {},
            # Drawn by this package from numbers; names in it are escaped by matplotlib.
            ratios=Markup(cost_picture.draw_ratios(record)),
            lengths=Markup(cost_picture.draw_lengths(record)),
        )
        + "\n"
    )

"""The picture of what a run would have caught: honest errors, the budget and fault errors on one log axis.

All are shares of a budget, so that one axis holds them: the budget is the line at 1. One panel for each dtype, one row
for each family of checks, one lane in the row for each honest result (above) and each planted fault (below).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports import overview
from reports.detection import families
from reports.picture import Axis, draw_frame, draw_legend
from reports.record import Record
from reports.record_names import DtypeName
from reports.svg import STAND_INS, Mark, draw_svg

_ROW_INCHES, _PANEL_INCHES, _TOP_INCHES, _WIDTH_INCHES = 0.42, 0.75, 0.35, 11.0
_HONEST = Mark("result of a subject", "pass", "o", 4)
_CAUGHT = Mark("planted fault, caught here", "fail", "X", 6)
_NOT_CAUGHT = Mark("planted fault, within this budget", "muted", "x", 5)


def draw(record: Record) -> str:
    """Draw the picture.

    Args:
        record: The record.

    Returns:
        An ``<svg>`` element in the colours of the page; "" where no fault was planted.
    """
    rows = families(record)
    dtypes = [dtype for dtype in get_args(DtypeName) if any(planted.dtype == dtype for planted in record.planted)]
    if not rows:
        return ""
    height = len(dtypes) * (len(rows) * _ROW_INCHES + _PANEL_INCHES) + _TOP_INCHES

    def fill(figure: Figure) -> None:
        panels = figure.subplots(len(dtypes), 1, squeeze=False)
        figure.subplots_adjust(
            left=0.17, right=0.98, hspace=_PANEL_INCHES / (len(rows) * _ROW_INCHES),
            top=1 - (_TOP_INCHES + 0.3) / height, bottom=0.3 / height,
        )  # fmt: skip
        for dtype, (axes,) in zip(dtypes, panels, strict=True):
            honest = [_honest(record, dtype, family) for family in rows]
            faults = [_faults(record, dtype, family) for family in rows]
            values = [value for row in honest for value in row] + [value for row in faults for value, _ in row]
            axis = Axis.around([*values, 1.0])
            draw_frame(axes, axis, f"{dtype}, measured / budget", rows)
            axes.axvline(0.0, color=STAND_INS["ink"], linewidth=1.6, zorder=1)
            for index in range(len(rows)):
                _points(axes, axis, index - 0.2, honest[index], _HONEST)
                for mark, caught in ((_CAUGHT, True), (_NOT_CAUGHT, False)):
                    _points(axes, axis, index + 0.2, [v for v, is_caught in faults[index] if is_caught is caught], mark)
        handles = [Line2D([], [], label=mark.label, **mark.style()) for mark in (_HONEST, _CAUGHT, _NOT_CAUGHT)]
        draw_legend(figure, [*handles, Line2D([], [], label="budget", color=STAND_INS["ink"], linewidth=1.6)])

    label = "Honest results and planted faults as shares of their budgets on a log axis, by dtype and family of checks"
    return draw_svg(_WIDTH_INCHES, height, fill, label)


def _honest(record: Record, dtype: str, family: str) -> list[float]:
    """The worst share of the budget of each result."""
    quantities = overview.FAMILIES.get(family, ())
    worst = [overview.worst([result], quantities) for result in record.results if result.dtype == dtype]
    return [found.value for found in worst if found is not None]


def _faults(record: Record, dtype: str, family: str) -> list[tuple[float, bool]]:
    return [
        (planted.margins[family], family in planted.caught_by)
        for planted in record.planted
        if planted.dtype == dtype and family in planted.margins
    ]


def _points(axes: Axes, axis: Axis, middle: float, values: Sequence[float], mark: Mark) -> None:
    """Points in lanes around a height, in the order of their values."""
    if values:
        places = sorted(axis.place(value) for value in values)
        lanes = [middle + 0.3 * ((index + 0.5) / len(places) - 0.5) for index in range(len(places))]
        axes.plot(places, lanes, **mark.style())

"""The picture of a run: every measured difference beside its budget and the witness's own error, on a log axis.

One panel for each dtype and kind of budget, one row for each quantity, one lane in the row for each result. Headroom
is the gap between a dot and the bar to its right. A difference of exactly 0 has no place on a log axis: it is drawn in
a band of its own at the left edge, and NaN and infinities in one at the right edge.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.overview import ratio
from reports.record import Record
from reports.record_names import NOT_A_PASS, DtypeName
from reports.record_results import JudgementRecord
from reports.svg import STAND_INS, Mark, draw_svg
from reports.words import DISTANCES, QUANTITIES

Key = tuple[str, str, str]
"""Dtype, kind of budget, quantity."""

_ROW_INCHES, _PANEL_INCHES, _TOP_INCHES, _WIDTH_INCHES = 0.34, 0.75, 0.35, 11.0
_LANES = 0.7
"""Share of a row's height that its lanes take."""
_BAND = 0.1
"""Width of a band at the edge, as a share of the decades shown."""


_BUDGET = Mark("budget", "ink", "|", 11, edge=1.6)
_WITNESS = Mark("the witness's own error", "muted", "o", 4, hollow=True)
_MEASURED = {
    "PASS": Mark("measured, PASS", "pass", "o", 4),
    "INCONCLUSIVE": Mark("INCONCLUSIVE", "inconclusive", "^", 8),
    "FAIL": Mark("FAIL", "fail", "X", 9),
    "ERROR": Mark("ERROR", "error", "s", 7),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """Decades that a panel shows, and where the values go that no decade holds."""

    low: int
    high: int

    @classmethod
    def around(cls, values: Iterable[float]) -> Axis:
        """The decades that hold all values which a decade can hold."""
        decades = [math.log10(abs(value)) for value in values if value != 0 and math.isfinite(value)] or [-1.0]
        return cls(low=math.floor(min(decades) - 0.1), high=math.ceil(max(decades) + 0.1))

    @property
    def band(self) -> float:
        """Width of a band at the edge, in decades."""
        return _BAND * (self.high - self.low)

    def place(self, value: float) -> float:
        """The horizontal place of a magnitude, in decades."""
        if value == 0:
            return self.low - self.band / 2
        return math.log10(abs(value)) if math.isfinite(value) else self.high + self.band / 2


def draw(record: Record) -> str:
    """Draw the picture.

    Args:
        record: The record.

    Returns:
        An ``<svg>`` element whose colours are the CSS variables of the page (``--ink``, ``--pass``, ...). "" where
        nothing was measured. Equal records give equal text.
    """
    shown = _nearest(record)
    dtypes = [dtype for dtype in get_args(DtypeName) if any(key[0] == dtype for key in shown)]
    quantities = [quantity for quantity in QUANTITIES if any(key[2] == quantity for key in shown)]
    if not shown:
        return ""
    height = len(dtypes) * (len(quantities) * _ROW_INCHES + _PANEL_INCHES) + _TOP_INCHES

    def fill(figure: Figure) -> None:
        panels = figure.subplots(len(dtypes), len(DISTANCES), squeeze=False, sharey=True)
        figure.subplots_adjust(
            left=0.1, right=0.98, wspace=0.04, hspace=_PANEL_INCHES / (len(quantities) * _ROW_INCHES),
            top=1 - (_TOP_INCHES + 0.3) / height, bottom=0.3 / height,
        )  # fmt: skip
        for dtype, row in zip(dtypes, panels, strict=True):
            axis = _axis(j for key, judgements in shown.items() if key[0] == dtype for j in judgements)
            for (kind, words), axes in zip(DISTANCES.items(), row, strict=True):
                draw_frame(axes, axis, f"{dtype}, to the {words}", [QUANTITIES[quantity] for quantity in quantities])
                for index, quantity in enumerate(quantities):
                    _draw_row(axes, axis, index, shown.get((dtype, kind, quantity), ()))
        draw_legend(figure, _legend(shown))

    label = "Measured differences, budgets and the witness's own errors on a log axis, by dtype and quantity"
    return draw_svg(_WIDTH_INCHES, height, fill, label)


def _nearest(record: Record) -> Mapping[Key, Sequence[JudgementRecord]]:
    """For each result, of its judgements of one kind and quantity the worst, or that nearest to its budget."""
    shown: defaultdict[Key, list[JudgementRecord]] = defaultdict(list)
    for result in record.results:
        nearest: dict[Key, JudgementRecord] = {}
        for judgement in result.judgements:
            key: Key = (result.dtype, judgement.budget_kind, judgement.quantity)
            if judgement.measured is None:
                continue
            if key not in nearest or _weight(judgement) > _weight(nearest[key]):
                nearest[key] = judgement
        for key, judgement in nearest.items():
            shown[key].append(judgement)
    return shown


def _weight(judgement: JudgementRecord) -> tuple[int, bool, float]:
    severity = -NOT_A_PASS.index(judgement.verdict) if judgement.verdict in NOT_A_PASS else -len(NOT_A_PASS)
    used = ratio(judgement) or 0.0
    return severity, math.isnan(used), used


def _axis(judgements: Iterable[JudgementRecord]) -> Axis:
    return Axis.around(v for j in judgements for v in (j.measured, j.budget, j.witness_error) if v is not None)


def draw_frame(axes: Axes, axis: Axis, title: str, rows: Sequence[str]) -> None:
    """Draw a panel without its points: title, a row for each label, decades, and a band at each edge."""
    ink, line = STAND_INS["ink"], STAND_INS["line"]
    axes.set_title(title, loc="left", fontsize=11, color=ink)
    axes.set_facecolor("none")
    axes.set_xlim(axis.low - axis.band, axis.high + axis.band)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    # The outermost decades carry no label, so that none runs into those of the bands.
    step = math.ceil((axis.high - axis.low) / 8)
    decades = range(axis.low + 1, axis.high, step)
    ticks = [axis.low - axis.band / 2, *decades, axis.high + axis.band / 2]
    axes.set_xticks(ticks, ["0", *(f"1e{decade}" for decade in decades), "NaN, inf"])
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0, colors=ink)
    for decade in range(axis.low, axis.high + 1):
        axes.axvline(decade, color=line, linewidth=0.6, zorder=0)
    for index in range(1, len(rows)):
        axes.axhline(index - 0.5, color=line, linewidth=0.6, zorder=0)
    for left in (axis.low - axis.band, axis.high):
        axes.axvspan(left, left + axis.band, color=STAND_INS["band"], linewidth=0, zorder=0)
    axes.spines[:].set_visible(False)


def _draw_row(axes: Axes, axis: Axis, index: int, judgements: Sequence[JudgementRecord]) -> None:
    if not judgements:
        return
    # By budget, so that the bars make a wall and the gap in front of it can be seen.
    lanes = sorted(judgements, key=lambda judgement: axis.place(judgement.budget or 0.0))
    lane = _LANES / len(lanes)
    bar = max(3.0, min(12.0, lane * _ROW_INCHES * 72))
    points: defaultdict[Mark, list[tuple[float, float]]] = defaultdict(list)
    for position, judgement in enumerate(lanes):
        y = index + (position + 0.5) * lane - _LANES / 2
        measured = _MEASURED[judgement.verdict if judgement.verdict in _MEASURED else "PASS"]
        # A budget that is the witness's own error, with nothing added, is drawn as the bar alone.
        witness_error = None if judgement.witness_error == judgement.budget else judgement.witness_error
        for mark, value in ((_WITNESS, witness_error), (_BUDGET, judgement.budget), (measured, judgement.measured)):
            if value is not None:
                points[mark].append((axis.place(value), y))
    for mark in (_WITNESS, _BUDGET, *_MEASURED.values()):
        if mark in points:
            x, y_all = zip(*points[mark], strict=True)
            axes.plot(x, y_all, **mark.style(bar if mark is _BUDGET else None))


def draw_legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Draw the legend along the top."""
    figure.legend(
        handles=handles, loc="upper left", ncols=6, frameon=False, borderpad=0, borderaxespad=0, handletextpad=0.1,
        columnspacing=1.5, labelcolor=STAND_INS["ink"],
    )  # fmt: skip


def _legend(shown: Mapping[Key, Sequence[JudgementRecord]]) -> list[Line2D]:
    present = {judgement.verdict for judgements in shown.values() for judgement in judgements}
    marks = [mark for verdict, mark in _MEASURED.items() if verdict in present]
    return [Line2D([], [], label=mark.label, **mark.style()) for mark in (*marks, _WITNESS, _BUDGET)]

"""The picture of a run: every measured difference beside its budget and the witness's own error, on a log axis.

One panel for each dtype and kind of budget, one row for each quantity, one lane in the row for each result. Headroom
is the gap between a dot and the bar to its right. A difference of exactly 0 has no place on a log axis: it is drawn in
a band of its own at the left edge, and NaN and infinities in one at the right edge.
"""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.overview import ratio
from reports.record import NOT_A_PASS, DtypeName, JudgementRecord, QuantityName, Record
from reports.words import DISTANCES, QUANTITIES

Key = tuple[str, str, str]
"""Dtype, kind of budget, quantity."""

_ROW_INCHES, _PANEL_INCHES, _TOP_INCHES, _WIDTH_INCHES = 0.34, 0.75, 0.35, 11.0
_LANES = 0.7
"""Share of a row's height that its lanes take."""
_BAND = 0.1
"""Width of a band at the edge, as a share of the decades shown."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """How a kind of point looks; failing ones differ in shape too, not in colour alone."""

    label: str
    role: str
    shape: str
    size: float
    hollow: bool = False
    edge: float = 0.8

    def style(self, size: float | None = None) -> dict[str, Any]:
        colour = _STAND_INS[self.role]
        return {
            "marker": self.shape,
            "markersize": self.size if size is None else size,
            "linestyle": "none",
            "color": colour,
            "markerfacecolor": "none" if self.hollow else colour,
            "markeredgewidth": self.edge,
        }


# Stand-ins for the colours of the page: matplotlib wants real ones, the page has two sets (light and dark).
_ROLES = ("ink", "muted", "line", "band", "pass", "fail", "error", "inconclusive")
_STAND_INS = {role: f"#0102{index:02x}" for index, role in enumerate(_ROLES)}
_BUDGET = _Mark("budget", "ink", "|", 11, edge=1.6)
_WITNESS = _Mark("the witness's own error", "muted", "o", 4, hollow=True)
_MEASURED = {
    "PASS": _Mark("measured, PASS", "pass", "o", 4),
    "INCONCLUSIVE": _Mark("INCONCLUSIVE", "inconclusive", "^", 8),
    "FAIL": _Mark("FAIL", "fail", "X", 9),
    "ERROR": _Mark("ERROR", "error", "s", 7),
}


@dataclass(frozen=True, slots=True)
class _Axis:
    """Decades that a panel shows, and where the values go that no decade holds."""

    low: int
    high: int

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
    # A fixed salt gives ids that do not change from run to run; text stays text, which can be selected and read aloud.
    with matplotlib.rc_context({"svg.hashsalt": "packparity", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(_WIDTH_INCHES, height), facecolor="none")
        FigureCanvasSVG(figure)
        panels = figure.subplots(len(dtypes), len(DISTANCES), squeeze=False, sharey=True)
        figure.subplots_adjust(
            left=0.1, right=0.98, wspace=0.04, hspace=_PANEL_INCHES / (len(quantities) * _ROW_INCHES),
            top=1 - (_TOP_INCHES + 0.3) / height, bottom=0.3 / height,
        )  # fmt: skip
        for dtype, row in zip(dtypes, panels, strict=True):
            axis = _axis(j for key, judgements in shown.items() if key[0] == dtype for j in judgements)
            for (kind, words), axes in zip(DISTANCES.items(), row, strict=True):
                _frame(axes, axis, f"{dtype}, to the {words}", quantities)
                for index, quantity in enumerate(quantities):
                    _draw_row(axes, axis, index, shown.get((dtype, kind, quantity), ()))
        figure.legend(
            handles=_legend(shown), loc="upper left", ncols=6, frameon=False, borderpad=0, borderaxespad=0,
            handletextpad=0.1, columnspacing=1.5, labelcolor=_STAND_INS["ink"],
        )  # fmt: skip
        document = io.StringIO()
        # Without metadata: its date would change, and its URLs are not wanted in a page that needs nothing else.
        figure.savefig(document, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _for_page(document.getvalue())


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


def _axis(judgements: Iterable[JudgementRecord]) -> _Axis:
    values = [v for j in judgements for v in (j.measured, j.budget, j.witness_error) if v is not None]
    decades = [math.log10(abs(value)) for value in values if value != 0 and math.isfinite(value)] or [-1.0]
    return _Axis(low=math.floor(min(decades) - 0.1), high=math.ceil(max(decades) + 0.1))


def _frame(axes: Axes, axis: _Axis, title: str, quantities: Sequence[QuantityName]) -> None:
    ink, line = _STAND_INS["ink"], _STAND_INS["line"]
    axes.set_title(title, loc="left", fontsize=11, color=ink)
    axes.set_facecolor("none")
    axes.set_xlim(axis.low - axis.band, axis.high + axis.band)
    axes.set_ylim(len(quantities) - 0.5, -0.5)
    # The outermost decades carry no label, so that none runs into those of the bands.
    step = math.ceil((axis.high - axis.low) / 8)
    decades = range(axis.low + 1, axis.high, step)
    ticks = [axis.low - axis.band / 2, *decades, axis.high + axis.band / 2]
    axes.set_xticks(ticks, ["0", *(f"1e{decade}" for decade in decades), "NaN, inf"])
    axes.set_yticks(range(len(quantities)), [QUANTITIES[quantity] for quantity in quantities])
    axes.tick_params(length=0, colors=ink)
    for decade in range(axis.low, axis.high + 1):
        axes.axvline(decade, color=line, linewidth=0.6, zorder=0)
    for index in range(1, len(quantities)):
        axes.axhline(index - 0.5, color=line, linewidth=0.6, zorder=0)
    for left in (axis.low - axis.band, axis.high):
        axes.axvspan(left, left + axis.band, color=_STAND_INS["band"], linewidth=0, zorder=0)
    axes.spines[:].set_visible(False)


def _draw_row(axes: Axes, axis: _Axis, index: int, judgements: Sequence[JudgementRecord]) -> None:
    if not judgements:
        return
    # By budget, so that the bars make a wall and the gap in front of it can be seen.
    lanes = sorted(judgements, key=lambda judgement: axis.place(judgement.budget or 0.0))
    lane = _LANES / len(lanes)
    bar = max(3.0, min(12.0, lane * _ROW_INCHES * 72))
    points: defaultdict[_Mark, list[tuple[float, float]]] = defaultdict(list)
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


def _legend(shown: Mapping[Key, Sequence[JudgementRecord]]) -> list[Line2D]:
    present = {judgement.verdict for judgements in shown.values() for judgement in judgements}
    marks = [mark for verdict, mark in _MEASURED.items() if verdict in present]
    return [Line2D([], [], label=mark.label, **mark.style()) for mark in (*marks, _WITNESS, _BUDGET)]


def _for_page(document: str) -> str:
    """The ``<svg>`` element alone, in the colours of the page."""
    svg = document[document.index("<svg") :]
    for role, colour in _STAND_INS.items():
        svg = svg.replace(colour, f"var(--{role})")
    label = "Measured differences, budgets and the witness's own errors on a log axis, by dtype and quantity"
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)

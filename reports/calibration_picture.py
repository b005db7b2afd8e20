"""The picture of a calibration: honest errors, the budget and fault errors on one log axis, a panel for each dtype."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from reports.calibration import BINS_PER_DECADE, CalibrationRecord, Distribution, PopulationName
from reports.words import number

_INK, _LINE = "#222222", "#dddddd"
_COLOURS: dict[PopulationName, str] = {"honest": "#2a78b5", "fault": "#c4572e"}
_WORDS: dict[PopulationName, str] = {"honest": "honest subjects", "fault": "planted faults"}
_BINS_PER_BAR = 5
_BAR = _BINS_PER_BAR / BINS_PER_DECADE
"""Width of a bar, in decades."""
_BEYOND = 0.4
"""Where results stand that are not finite, in decades beyond the last one."""
_WIDTH_INCHES, _PANEL_INCHES, _EDGES_INCHES = 9.0, 1.5, 0.9


def draw(record: CalibrationRecord) -> str:
    """Draw the picture.

    Args:
        record: The calibration.

    Returns:
        A whole SVG document; bars are shares of the results of one kind. Equal records give equal text.
    """
    low, high = _decades(record)
    height = len(record.dtypes) * _PANEL_INCHES + _EDGES_INCHES
    # A fixed salt gives ids that do not change from run to run; text stays text, which can be selected and read aloud.
    with matplotlib.rc_context({"svg.hashsalt": "packparity", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(_WIDTH_INCHES, height), facecolor="white")
        FigureCanvasSVG(figure)
        panels = figure.subplots(len(record.dtypes), 1, squeeze=False, sharex=True)[:, 0]
        figure.subplots_adjust(left=0.08, right=0.98, hspace=0.35, top=1 - 0.35 / height, bottom=0.5 / height)
        for dtype, axes in zip(record.dtypes, panels, strict=True):
            _frame(axes, low, high)
            titles: list[str] = [dtype]
            for population in _COLOURS:
                distribution = record.distribution(population, dtype)
                if distribution is not None and distribution.num_values:
                    _bars(axes, distribution, population, high)
                    titles.append(_title(distribution, population))
            axes.set_title("; ".join(titles), loc="left", fontsize=9, color=_INK)
        panels[0].legend(loc="upper right", frameon=False, labelcolor=_INK)
        panels[-1].set_xlabel("measured / budget, of each result the largest", color=_INK)
        document = io.StringIO()
        # Without metadata: its date would change.
        figure.savefig(document, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return document.getvalue()


def _title(distribution: Distribution, population: PopulationName) -> str:
    count, outermost = f"{distribution.num_values:,} results of {_WORDS[population]}", number(distribution.outermost)
    return f"{count}, {distribution.end} {outermost}"


def _decades(record: CalibrationRecord) -> tuple[int, int]:
    bins = [b for s in record.series if s.quantity == "any" and s.measure == "ratio" for b, _ in s.distribution.bins]
    low, high = min(bins, default=0), max(bins, default=0)
    return min(-2, math.floor(low / BINS_PER_DECADE)), max(2, math.ceil((high + 1) / BINS_PER_DECADE))


def _frame(axes: Axes, low: int, high: int) -> None:
    axes.set_xlim(low, high + 1)
    step = max(1, math.ceil((high - low) / 12))
    decades = range(math.ceil(low / step) * step, high, step)
    labels = [f"1e{decade}" if decade else "1" for decade in decades]
    axes.set_xticks([*decades, high + _BEYOND + _BAR / 2], [*labels, "not finite"])
    axes.tick_params(length=0, colors=_INK)
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)
    for decade in range(low, high + 1):
        axes.axvline(decade, color=_LINE, linewidth=0.5, zorder=0)
    axes.axvline(0, color=_INK, linewidth=1.5, zorder=3)
    axes.text(0.05, 0.97, "budget", transform=axes.get_xaxis_transform(), va="top", color=_INK)


def _bars(axes: Axes, distribution: Distribution, population: PopulationName, high: int) -> None:
    """Bars of a fifth of a decade; what is not finite stands beyond the last decade, zeros are left out."""
    heights: dict[float, int] = {}
    for number_of_bin, count in distribution.bins:
        left = number_of_bin // _BINS_PER_BAR * _BAR
        heights[left] = heights.get(left, 0) + count
    if distribution.infinite:
        heights[high + _BEYOND] = distribution.infinite
    places: Sequence[float] = sorted(heights)
    axes.bar(
        places,
        [heights[place] / distribution.num_values for place in places],
        width=_BAR,
        align="edge",
        color=_COLOURS[population],
        alpha=0.75,
        linewidth=0,
        label=_WORDS[population],
    )

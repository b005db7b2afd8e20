"""The picture of a forecast: the peak of each path by what it consists of, against what can be used; and its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.forecast_record import ForecastRecord, PathRecord, PeakRecord
from reports.svg import STAND_INS, draw_svg

_WIDTH_INCHES, _ROW_INCHES, _FRAME_INCHES = 11.0, 0.42, 1.25
# Told apart by hatching too, not by colour alone.
_PARTS: Sequence[tuple[str, str, str, Callable[[PeakRecord], int]]] = (
    ("parameters", "muted", "", lambda peak: peak.parameters),
    ("optimizer state, gradients", "error", "..", lambda peak: peak.optimizer_state + peak.gradients),
    ("gathered", "inconclusive", "//", lambda peak: peak.gathered),
    ("activations", "pass", "", lambda peak: peak.activations),
)
_PHASES: Sequence[tuple[str, str, str]] = (
    ("reference", "muted", ""),
    ("policy", "pass", ""),
    ("backward", "inconclusive", "//"),
    ("optimizer", "error", ".."),
)


def draw(record: ForecastRecord) -> str:
    """Draw the picture.

    Args:
        record: The forecast.

    Returns:
        An ``<svg>`` element; "" where nothing was forecast. Equal records give equal text.
    """
    paths = [path for path in reversed(record.paths) if path.peak is not None]
    if not paths:
        return ""

    def fill(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.095, right=0.99, bottom=0.2, top=0.8, wspace=0.24)
        _draw_memory(left, paths, record.device.usable_bytes)
        _draw_time(right, paths)

    height = _FRAME_INCHES + _ROW_INCHES * len(paths)
    return draw_svg(_WIDTH_INCHES, height, fill, "Peak memory of a rank and least time of a step, by path")


def _draw_memory(axes: Axes, paths: Sequence[PathRecord], usable_bytes: int) -> None:
    names = [path.path for path in paths]
    ends = [0.0] * len(paths)
    for label, colour, hatch, part in _PARTS:
        widths = [part(path.peak) / 2**30 for path in paths if path.peak is not None]
        _bars(axes, names, widths, ends, label, colour, hatch)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.axvline(usable_bytes / 2**30, color=STAND_INS["fail"], linestyle="dashed", linewidth=1.4, label="can be used")
    _frame(axes, "Peak of a rank, GiB")


def _draw_time(axes: Axes, paths: Sequence[PathRecord]) -> None:
    names = [path.path for path in paths]
    ends = [0.0] * len(paths)
    for phase, colour, hatch in _PHASES:
        widths = [path.seconds.get(phase, 0.0) for path in paths]
        _bars(axes, names, widths, ends, phase, colour, hatch)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    _frame(axes, "Least seconds of a step")


def _bars(
    axes: Axes,
    names: Sequence[str],
    widths: Sequence[float],
    ends: Sequence[float],
    label: str,
    colour: str,
    hatch: str,
) -> None:
    axes.barh(
        names,
        widths,
        left=ends,
        height=0.62,
        label=label,
        color=STAND_INS[colour],
        hatch=hatch or None,
        edgecolor=STAND_INS["band"],
        linewidth=0.6,
    )


def _frame(axes: Axes, title: str) -> None:
    ink = STAND_INS["ink"]
    axes.set_xlabel(title, color=ink)
    axes.set_facecolor("none")
    axes.tick_params(length=0, colors=ink)
    axes.grid(axis="x", color=STAND_INS["line"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.legend(
        frameon=False, labelcolor=ink, ncols=3, fontsize=8.5, loc="lower left", bbox_to_anchor=(0, 1.0), borderpad=0
    )

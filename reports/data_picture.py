"""The picture of a survey: how lengths are distributed, and what sequence packing saves at each row limit."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import accumulate

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from reports.data_record import DataReport, PlanRecord, SimulationRecord

_WIDTH_INCHES, _HEIGHT_INCHES = 11.0, 3.6
# Stand-ins for the colours of the page: matplotlib wants real ones, the page has two sets (light and dark).
_STAND_INS = {
    role: f"#0304{index:02x}" for index, role in enumerate(("ink", "muted", "line", "first", "second", "third"))
}
# Told apart by their lines too, not by colour alone.
_PARTS: Mapping[str, tuple[str, str]] = {
    "prompt": ("first", "solid"),
    "chosen": ("second", "dashed"),
    "rejected": ("third", "dotted"),
    "response": ("second", "dashed"),
    "group": ("ink", "dashdot"),
}
_PLANS: Mapping[str, tuple[str, str]] = {"shared": ("first", "o"), "repeated": ("third", "s")}
_OTHERS: Mapping[str, tuple[str, str]] = {"packing, sorting": ("second", "dashed"), "sorting": ("muted", "dotted")}


def draw(report: DataReport) -> str:
    """Draw the picture.

    Args:
        report: The report.

    Returns:
        An ``<svg>`` element whose colours are the CSS variables of the page. "" where no row is usable. Equal reports
        give equal text.
    """
    if report.simulation is None:
        return ""
    # A fixed salt gives ids that do not change from run to run; text stays text, which can be selected and read aloud.
    with matplotlib.rc_context({"svg.hashsalt": "packparity", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), facecolor="none")
        FigureCanvasSVG(figure)
        left, right = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.06, right=0.99, bottom=0.15, top=0.9, wspace=0.16)
        _draw_lengths(left, report)
        _draw_savings(right, report.simulation, report)
        document = io.StringIO()
        # Without metadata: its date would change, and its URLs are not wanted in a page that needs nothing else.
        figure.savefig(document, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _for_page(document.getvalue())


def _draw_lengths(axes: Axes, report: DataReport) -> None:
    for part in report.lengths:
        colour, line = _PARTS[part.part]
        label = f"{report.noun}, packed" if part.part == "group" else part.part
        number = sum(each.number for each in part.bins)
        reached = list(accumulate((each.number / number for each in part.bins), initial=0.0))
        # From the shortest length on: a log axis has no place for 0.
        ends = [max(1, part.shortest), *(min(each.greatest, part.longest) for each in part.bins)]
        axes.plot(ends, reached, label=label, color=_STAND_INS[colour], linestyle=line, linewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.02)
    _frame(axes, f"Share of {report.noun}s that are no longer", f"{report.unit} (log scale)")


def _draw_savings(axes: Axes, simulation: SimulationRecord, report: DataReport) -> None:
    for name, (colour, marker) in _PLANS.items():
        points = [(plan.row_limit or 0, _saved(plan)) for plan in simulation.by_row_limit if plan.plan.endswith(name)]
        limits, saved = zip(*points, strict=True)
        axes.plot(
            limits,
            saved,
            label=f"rows of several, prompts {name}",
            color=_STAND_INS[colour],
            marker=marker,
            linewidth=1.4,
        )
    for plan in simulation.plans:
        if plan.plan in _OTHERS:
            colour, line = _OTHERS[plan.plan]
            label = f"a {report.noun} to a row, sorted" if "packing" in plan.plan else "padded sequences, sorted"
            axes.axhline(_saved(plan), label=label, color=_STAND_INS[colour], linestyle=line, linewidth=1.2)
    axes.set_xscale("log", base=2)
    least = axes.get_ylim()[0]
    axes.set_ylim(min(0.0, least), 1.0)
    axes.axhline(0, color=_STAND_INS["muted"], linewidth=0.8)
    _frame(axes, "Predicted share of time saved", f"row limit in {report.unit} (log scale)")


def _saved(plan: PlanRecord) -> float:
    """Share of the time of padded sequences."""
    return 1 - 1 / plan.speed_up


def _frame(axes: Axes, title: str, below: str) -> None:
    ink, line = _STAND_INS["ink"], _STAND_INS["line"]
    axes.set_title(title, loc="left", fontsize=11, color=ink)
    axes.set_xlabel(below, color=ink)
    axes.set_facecolor("none")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.minorticks_off()
    axes.tick_params(length=0, colors=ink)
    axes.grid(color=line, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, labelcolor=ink)


def _for_page(document: str) -> str:
    """The ``<svg>`` element alone, in the colours of the page."""
    svg = document[document.index("<svg") :]
    for role, colour in _STAND_INS.items():
        svg = svg.replace(colour, f"var(--{role})")
    label = "Distribution of lengths, and predicted share of time that sequence packing saves by row limit"
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)

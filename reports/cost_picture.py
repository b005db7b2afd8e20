"""Two pictures of measured cost: ratios as bars, and time and memory against length with the FLOP bound drawn in."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.cost_record import CostRecord, PathName, RatioRecord, WorkloadRecord
from reports.svg import STAND_INS, draw_svg
from reports.words import one_line

_WIDTH_INCHES = 11.0
_PLAIN = {"ink": "#1d2430", "muted": "#5c6675", "line": "#dde2ea", "band": "#eef1f6", "pass": "#12745a",
          "fail": "#c0202f", "error": "#8a2c9b", "inconclusive": "#a05a00"}  # fmt: skip
"""The light colours of the page, for a file of its own."""

# Told apart by marks and lines too, not by colour alone.
_STYLES: dict[PathName, tuple[str, str, str]] = {
    "padded": ("muted", "o", "solid"),
    "unpadded": ("muted", "s", "dashed"),
    "padding-free": ("muted", "^", "dotted"),
    "dense": ("inconclusive", "D", "solid"),
    "sparse": ("error", "P", "solid"),
    "split": ("pass", "X", "solid"),
}
_HATCHES: dict[PathName, str] = {"dense": "", "sparse": "//", "split": ".."}
_LABEL_LENGTH = 28
_BAR = 0.8
"""Share of its place on the axis that a group of bars takes."""


def draw_ratios(record: CostRecord) -> str:
    """Cost over the best unpacked path as bars, one group for each workload.

    Args:
        record: The record.

    Returns:
        An ``<svg>`` element whose colours are the CSS variables of the page. Equal records give equal text.
    """
    packed = [path.name for path in record.measured_paths if path.role == "packed"]
    workloads = [w for w in record.workloads if w.best_unpacked_time and packed]

    def fill(figure: Figure) -> None:
        times, memories = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.06, right=0.99, bottom=0.22, top=0.82, wspace=0.14)
        _draw_bars(times, workloads, packed, memory=False)
        _draw_bars(memories, workloads, packed, memory=True)

    return draw_svg(_WIDTH_INCHES, 3.9, fill, "Time and memory of packed paths over those of the best unpacked path")


def _draw_bars(axes: Axes, workloads: Sequence[WorkloadRecord], packed: Sequence[PathName], *, memory: bool) -> None:
    width = _BAR / max(1, len(packed))
    for lane, path in enumerate(packed):
        for place, workload in enumerate(workloads):
            best = workload.best_unpacked_memory if memory else workload.best_unpacked_time
            ratio = workload.ratio(path, best)
            value = None if ratio is None else ratio.memory if memory else ratio.time.value
            if ratio is None or value is None:
                continue
            x = place - _BAR / 2 + (lane + 0.5) * width
            colour = STAND_INS[_STYLES[path][0]]
            axes.bar(
                x, value, width * 0.92, color="none", edgecolor=colour, hatch=_HATCHES[path], linewidth=1.2,
                label=path if place == 0 else None,
            )  # fmt: skip
            if not memory:
                _draw_interval(axes, x, ratio)
            if not memory and ratio.flops is not None:
                label = "FLOPs of the path" if place == lane == 0 else None
                axes.plot([x - width * 0.46, x + width * 0.46], [ratio.flops] * 2, color=STAND_INS["fail"], label=label)
    axes.axhline(1, color=STAND_INS["ink"], linewidth=0.9)
    axes.set_xticks(range(len(workloads)), [_label(w.name) for w in workloads], rotation=20, ha="right")
    _frame(axes, "memory / best unpacked" if memory else "time / best unpacked (95 % intervals)")


def _label(name: str) -> str:
    """A name in glyphs that every font has, in which matplotlib finds no formula."""
    text = one_line(name).encode("ascii", "backslashreplace").decode("ascii")
    short = text if len(text) <= _LABEL_LENGTH else f"{text[: _LABEL_LENGTH - 3]}..."
    return short.replace("$", r"\$")


def _draw_interval(axes: Axes, x: float, ratio: RatioRecord) -> None:
    axes.plot([x, x], [ratio.time.low, ratio.time.high], color=STAND_INS["ink"], linewidth=1.4)


def draw_lengths(record: CostRecord) -> str:
    """Time and memory of a step against the length of its sequences, with what FLOPs and tokens alone would give.

    Args:
        record: The record.

    Returns:
        An ``<svg>`` element whose colours are the CSS variables of the page. Equal records give equal text.
    """
    workloads = sorted(record.workloads, key=lambda workload: workload.mean_length)

    def fill(figure: Figure) -> None:
        times, memories = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.07, right=0.99, bottom=0.13, top=0.82, wspace=0.18)
        for path in record.measured_paths:
            _draw_path(times, workloads, path.name, memory=False)
            _draw_path(memories, workloads, path.name, memory=True)
        _draw_bound(times, workloads, memory=False)
        _draw_bound(memories, workloads, memory=True)
        _frame(times, "seconds of a step, median and quartiles", "tokens of a sequence, mean")
        _frame(memories, "MiB of a step beyond what is held", "tokens of a sequence, mean")

    label = "Time and memory of a step against the length of its sequences, by path, with the FLOP bound"
    return draw_svg(_WIDTH_INCHES, 4.2, fill, label)


def _on_line(workload: WorkloadRecord) -> bool:
    """Whether a workload has the proportions of a sweep: half of each sequence is prompt."""
    return not workload.enters_comparison or workload.name.startswith("balanced")


def _draw_path(axes: Axes, workloads: Sequence[WorkloadRecord], path: PathName, *, memory: bool) -> None:
    role, mark, line = _STYLES[path]
    colour, points, on_line = STAND_INS[role], list[tuple[float, float]](), list[tuple[float, float]]()
    for workload in workloads:
        figures = workload.figures_of(path)
        value = None if figures is None else figures.step_bytes if memory else figures.median_s
        if figures is None or value is None:
            continue
        point = (workload.mean_length, value / 2**20 if memory else value)
        points.append(point)
        on_line += [point] if _on_line(workload) else []
        if not memory:
            quartiles = [figures.lower_quartile_s, figures.upper_quartile_s]
            axes.plot([point[0]] * 2, quartiles, color=colour, linewidth=1)
    if points:
        axes.plot(*zip(*points, strict=True), marker=mark, linestyle="none", color=colour, markersize=5, label=path)
    if len(on_line) > 1:
        axes.plot(*zip(*on_line, strict=True), linestyle=line, color=colour, linewidth=1)


def _draw_bound(axes: Axes, workloads: Sequence[WorkloadRecord], *, memory: bool) -> None:
    """The best unpacked path's figure times the least share of its FLOPs, or slots, that a packed path has."""
    points = []
    for workload in filter(_on_line, workloads):
        best = workload.best_unpacked_memory if memory else workload.best_unpacked_time
        figures = workload.figures_of(best) if best else None
        share = _least_share(workload, best, memory=memory) if best else None
        value = None if figures is None else figures.step_bytes if memory else figures.median_s
        if value is not None and share is not None:
            points.append((workload.mean_length, share * (value / 2**20 if memory else value)))
    if points:
        label = "token bound of packing" if memory else "FLOP bound of packing"
        axes.plot(
            *zip(*points, strict=True),
            color=STAND_INS["fail"],
            linestyle="dashdot",
            marker="_",
            markersize=14,
            label=label,
        )


def _least_share(workload: WorkloadRecord, best: PathName, *, memory: bool) -> float | None:
    """The least that a packed path has of the FLOPs, or of the slots, of the best unpacked one."""
    shares = []
    for path in ("dense", "sparse", "split"):
        if memory:
            slots = [(batch.slots.get(path), batch.slots[best]) for batch in workload.batches]
            if all(own is not None for own, _ in slots):
                shares.append(sum(own or 0 for own, _ in slots) / sum(of_best for _, of_best in slots))
        elif (ratio := workload.ratio(path, best)) is not None and ratio.flops is not None:
            shares.append(ratio.flops)
    return min(shares, default=None)


def _frame(axes: Axes, title: str, below: str = "") -> None:
    ink, line = STAND_INS["ink"], STAND_INS["line"]
    axes.set_title(title, loc="left", fontsize=11, color=ink, pad=32)
    axes.set_xlabel(below, color=ink)
    axes.set_facecolor("none")
    axes.set_ylim(bottom=0)
    axes.tick_params(length=0, colors=ink)
    axes.grid(axis="y", color=line, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=ink, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1, 0.98))


def alone(svg: str) -> str:
    """The picture as a file of its own, in the light colours of the page.

    Args:
        svg: An ``<svg>`` element in the colours of a page.

    Returns:
        The same in colours that need no page, on white.
    """
    for role, colour in _PLAIN.items():
        svg = svg.replace(f"var(--{role})", colour)
    head, _, rest = svg.partition(">")
    return f'{head} style="background: #ffffff">{rest}'.rstrip() + "\n"

"""Figures as ``<svg>`` elements in the colours of the page; equal input gives equal text."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Stand-ins for the colours of the page: matplotlib wants real ones, the page has two sets (light and dark).
_ROLES = ("ink", "muted", "line", "band", "pass", "fail", "error", "inconclusive")
STAND_INS = {role: f"#0102{index:02x}" for index, role in enumerate(_ROLES)}


@dataclass(frozen=True, slots=True)
class Mark:
    """How a kind of point looks; failing ones differ in shape too, not in colour alone."""

    label: str
    role: str
    shape: str
    size: float
    hollow: bool = False
    edge: float = 0.8

    def style(self, size: float | None = None) -> dict[str, Any]:
        """Arguments of ``plot``, with another size if one is given."""
        colour = STAND_INS[self.role]
        return {
            "marker": self.shape,
            "markersize": self.size if size is None else size,
            "linestyle": "none",
            "color": colour,
            "markerfacecolor": "none" if self.hollow else colour,
            "markeredgewidth": self.edge,
        }


def draw_svg(width: float, height: float, fill: Callable[[Figure], None], label: str) -> str:
    """Draw a figure.

    Args:
        width: In inches.
        height: In inches.
        fill: Draws into the figure, in colours of ``STAND_INS`` only.
        label: What the picture shows, for those who cannot see it; plain words of this package.

    Returns:
        An ``<svg>`` element whose colours are the CSS variables of the page (``--ink``, ``--pass``, ...).
    """
    # A fixed salt gives ids that do not change from run to run; text stays text, which can be selected and read aloud.
    with matplotlib.rc_context({"svg.hashsalt": "packparity", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(width, height), facecolor="none")
        FigureCanvasSVG(figure)
        fill(figure)
        document = io.StringIO()
        # Without metadata: its date would change, and its URLs are not wanted in a page that needs nothing else.
        figure.savefig(document, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = document.getvalue()
    svg = text[text.index("<svg") :]
    for role, colour in STAND_INS.items():
        svg = svg.replace(colour, f"var(--{role})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)

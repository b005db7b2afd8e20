"""A kill matrix as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from reports import kill_matrix_overview, words
from reports.kill_matrix import KillMatrix


def render(matrix: KillMatrix) -> str:
    """Render as HTML.

    Args:
        matrix: The kill matrix.

    Returns:
        A whole page. Text that comes from the run is escaped; equal matrices give equal text.
    """
    environment = Environment(
        loader=PackageLoader("reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters.update(
        number=words.number, mark=kill_matrix_overview.mark, strongest=kill_matrix_overview.strongest
    )
    return (
        environment.get_template("kill_matrix.html.j2").render(
            matrix=matrix,
            closing=kill_matrix_overview.closing_line(matrix),
            columns=kill_matrix_overview.COLUMNS,
            legend=kill_matrix_overview.LEGEND,
            attention=kill_matrix_overview.needs_attention(matrix),
            weak=kill_matrix_overview.weak(matrix),
            hidden=kill_matrix_overview.hidden(matrix),
            alone=kill_matrix_overview.sole_checks(matrix),
            depth=words.depth(matrix.model),
            objective=words.setting(matrix.objective),
        )
        + "\n"
    )


def _visible(value: object) -> object:
    # Not for Markup, which is a str too: this page draws no picture, so there is none.
    return words.printable(value) if type(value) is str else value

"""A kill matrix as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from reports import kill_matrix_overview, words
from reports.kill_matrix import KillMatrix
from reports.page import page_environment


def render(matrix: KillMatrix) -> str:
    """Render as HTML.

    Args:
        matrix: The kill matrix.

    Returns:
        A whole page. Text that comes from the run is escaped; equal matrices give equal text.
    """
    environment = page_environment()
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

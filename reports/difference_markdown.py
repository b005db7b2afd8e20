"""Two results side by side as GitHub Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.difference import Difference, closing_line, named
from reports.markdown import escape
from reports.words import number


def render(difference: Difference) -> str:
    """Render as GitHub Markdown.

    Args:
        difference: What to show; all ratios, moved or not.

    Returns:
        Markdown; text that comes from the results is escaped.
    """
    return "\n\n".join(_blocks(difference)) + "\n"


def _blocks(difference: Difference) -> Iterable[str]:
    yield f"# Two results: {difference.kind}"
    yield f"**{escape(closing_line(difference))}**"
    yield "\n".join(
        f"- {which}: {escape(title)}" for which, title in zip(("before", "after"), difference.titles, strict=True)
    )
    settings = [(change.what, change.before, change.after) for change in difference.settings]
    verdicts = named(difference.verdicts)
    ratios = [(pair.what, number(pair.before), number(pair.after)) for pair in difference.ratios]
    for title, rows in (("Settings", settings), ("Verdicts", verdicts), (difference.what_ratios.capitalize(), ratios)):
        if rows:
            yield f"## {title}"
            yield _table(rows)


def _table(rows: Sequence[tuple[str, str, str]]) -> str:
    lines = ["| | before | after |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {' | '.join(map(escape, row))} |" for row in rows)])

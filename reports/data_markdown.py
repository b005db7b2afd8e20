"""A survey of a preference file as GitHub Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.data_overview import Section, headline, sections, summary
from reports.data_record import DataReport
from reports.markdown import escape


def render(report: DataReport) -> str:
    """Render as Markdown.

    Args:
        report: The report.

    Returns:
        A whole document. Text that comes from the file is escaped; equal reports give equal text.
    """
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: DataReport) -> Iterable[str]:
    yield f"# {headline(report)}: {escape(report.file)}"
    yield _bullets(report.advice.reasons)
    yield escape(summary(report))
    for section in sections(report):
        yield f"## {escape(section.title)}"
        if section.rows:
            yield _table(section)
        if section.lines:
            yield _bullets(section.lines)
    digest = f", sha256 of the file {report.sha256}" if report.sha256 else ""
    yield escape(f"packparity {report.tool_version}, {report.created_utc}{digest}")


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)


def _table(section: Section) -> str:
    rule = ["---", *("---:" for _ in section.header[1:])]
    rows = [section.header, *section.rows]
    lines = [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"| {' | '.join(rule)} |", *lines[1:]])

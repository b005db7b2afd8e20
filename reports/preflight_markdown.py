"""A preflight as GitHub Markdown: the decision, the findings, the ranks, how it was run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.markdown import escape
from reports.preflight_overview import facts, headline, measures, rows, settings
from reports.preflight_record import PreflightRecord
from reports.words import one_line


def render(record: PreflightRecord) -> str:
    """Render as Markdown.

    Args:
        record: The record.

    Returns:
        A whole document; equal records give equal text.
    """
    return "\n\n".join(_blocks(record)) + "\n"


def _blocks(record: PreflightRecord) -> Iterable[str]:
    yield f"# Preflight: {record.decision}"
    yield escape(headline(record))
    if record.reasons:
        yield "\n".join(f"- {escape(one_line(reason))}" for reason in record.reasons)
    yield "## Findings"
    yield (
        "GO: proven here. NO-GO: found wrong. ABSTAINS: could not be looked at, and proves nothing. "
        "MEASURED: judged by nothing. "
        f"Without these there is no GO: {escape(', '.join(record.required))}."
    )
    if record.findings:
        yield _table(
            ("", "probe", "ranks", "seen", "hint"),
            [
                (row.finding.outcome, row.finding.name, row.ranks or "all", row.finding.seen, row.finding.hint)
                for row in rows(record)
            ],
        )
    measured = [
        (finding.name, "all" if finding.rank is None else str(finding.rank), name, value)
        for finding in record.findings
        for name, value in measures(finding)
    ]
    if measured:
        yield "## Measured"
        yield _table(("probe", "rank", "what", "value"), measured)
    if record.limits:
        yield "## Not looked at"
        yield "\n".join(f"- {escape(one_line(limit))}" for limit in record.limits)
    if record.ranks:
        yield "## Ranks"
        yield _table(
            ("rank", "host", "local rank", "device", "driver"),
            [(str(r.rank), r.host, str(r.local_rank), r.device, r.driver or "none") for r in record.ranks],
        )
    yield "## How it was run"
    yield _table(("", ""), [*facts(record).items(), *settings(record).items()])


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    cells = [[escape(one_line(cell)) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *cells])

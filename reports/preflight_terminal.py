"""A preflight on a terminal: a line for each finding, and the decision last."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.text import Text

from reports.preflight_overview import facts, headline, rows
from reports.preflight_record import Outcome, PreflightRecord
from reports.words import one_line, plural

_STYLES: dict[Outcome, str] = {"GO": "green", "NO-GO": "bold red", "ABSTAINS": "yellow", "MEASURED": "dim"}
_MOST_ALIKE = 4
"""Lines of one probe with one outcome; a cluster has many ranks."""


def print_preflight(record: PreflightRecord, console: Console) -> None:
    """Print every finding, what was not looked at, and GO or NO-GO.

    Args:
        record: What to print.
        console: Where to.
    """
    console.print(Text(f"{facts(record)['ranks']}; {facts(record)['versions']}", style="dim"), soft_wrap=True)
    shown: Counter[tuple[str, Outcome]] = Counter()
    for row in rows(record):
        finding = row.finding
        shown[finding.name, finding.outcome] += 1
        if shown[finding.name, finding.outcome] > _MOST_ALIKE:
            continue
        ranks = f" ({row.ranks})" if row.ranks else ""
        line = Text(f"{finding.outcome:<8} ", style=_STYLES[finding.outcome])
        line.append(one_line(f"{finding.name}{ranks}: {finding.seen}"), style="default")
        console.print(line, soft_wrap=True)
        if finding.hint:
            console.print(Text(f"         hint: {one_line(finding.hint)}", style="dim"), soft_wrap=True)
    for (name, outcome), times in shown.items():
        if times > _MOST_ALIKE:
            console.print(Text(f"{outcome:<8} {name}: {plural(times - _MOST_ALIKE, 'line')} more, in the report"))
    for limit in record.limits:
        console.print(Text(f"not looked at: {one_line(limit)}", style="dim"), soft_wrap=True)
    style = "bold green" if record.decision == "GO" else "bold red"
    console.print(Text(one_line(headline(record)), style=style), soft_wrap=True)

"""A record on a terminal: verdicts and headroom as tables, then everything that is not a PASS, with its evidence.

Nothing depends on colour, and no verdict is ever cut short. Names are shown as text, never read as markup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.breakable import Breakable
from reports.decisions import decisions_line
from reports.detection import missed, proof_lines
from reports.diagnosis import diagnosis_facts, diagnosis_title
from reports.exact import ExactGroup, exact_groups, exact_line, inexact_reasons
from reports.overview import (
    FAMILIES,
    Ratio,
    SummaryRow,
    broken,
    closing_line,
    counts_line,
    finding,
    needs_attention,
    not_applicable,
    own_reasons,
    ratio,
    run_reasons,
    summary_rows,
)
from reports.record import Record
from reports.record_faults import DiagnosisRecord, PlantedRecord
from reports.record_names import VerdictName
from reports.record_results import ResultRecord
from reports.words import NONE, count, depth, listed, number, one_line, plural, printable

_STYLES: dict[VerdictName, str] = {
    "PASS": "bold green",
    "FAIL": "bold red",
    "ERROR": "bold magenta",
    "INCONCLUSIVE": "bold yellow",
    "NOT_APPLICABLE": "dim",
}
_MAX_CASES_NAMED = 4
_MAX_JUDGEMENTS_SHOWN = 6
_MAX_RESULTS_SHOWN = 3
_MAX_BLIND_SPOTS_NAMED = 3
_WRITTEN = "in the report that --out writes"


def print_record(record: Record, console: Console) -> None:
    """Print a record.

    Args:
        record: What to print.
        console: Where to; its width and colours are respected.
    """
    console.print(render(record))


def render(record: Record) -> RenderableType:
    """A record as something that rich can print.

    Args:
        record: What to show.

    Returns:
        Tables of verdicts and of headroom, what is not a PASS and what is probably wrong, what was not applicable,
        notes, and at the end the verdict with what it rests on.
    """
    rows = summary_rows(record)
    parts: list[RenderableType] = [_heading(record)]
    if rows:
        parts += [_verdict_table(rows), _headroom_table(rows)]
    for row in rows:
        if row.summary.verdict not in ("PASS", "NOT_APPLICABLE") and (reasons := inexact_reasons(record, row.summary)):
            parts.append(_labelled(row.summary.verdict, f"{row.summary.subject}, {row.summary.dtype}, all cases"))
            parts.append(_indented(reasons))
    for diagnosis in record.diagnoses:
        parts += _diagnosis(diagnosis)
    parts += _attention(needs_attention(record))
    parts += _exact_attention([group for group in exact_groups(record) if group.is_red])
    if survivors := missed(record):
        parts += _missed(survivors)
    if left_out := _left_out(record):
        parts += [Text("\nNot applicable", style="bold"), *left_out]
    if record.notes:
        parts += [Text("\nNotes", style="bold"), _indented(record.notes)]
    parts += [Text(), _labelled(record.verdict, closing_line(record))]
    parts.append(
        _indented(
            [
                line
                for line in (exact_line(record), decisions_line(record), *proof_lines(record, _MAX_BLIND_SPOTS_NAMED))
                if line
            ]
        )
    )
    if reasons := [*run_reasons(record), *_doubts(record)]:
        parts.append(_indented(reasons))
    return Group(*parts)


def _doubts(record: Record) -> list[str]:
    """Why nothing was proven about a subject whose cases all passed: of an INCONCLUSIVE run that is the very point."""
    if record.verdict != "INCONCLUSIVE":
        return []
    doubted = [summary for summary in record.summaries if summary.verdict == "INCONCLUSIVE"]
    reasons = [(summary, inexact_reasons(record, summary)) for summary in doubted]
    return [f"{summary.subject}, {summary.dtype}: {found[0]}" for summary, found in reasons if found]


def _heading(record: Record) -> Text:
    model, environment = record.model, record.environment
    return _labelled(
        record.verdict,
        f"packparity {record.tool_version}: {model.name}, {depth(model)}, {plural(len(record.cases), 'case')}, "
        f"on {environment.device}",
    )


def _verdict_table(rows: tuple[SummaryRow, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("subject")
    table.add_column("dtype", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("cases", no_wrap=True)
    table.add_column("values", justify="right", no_wrap=True)
    table.add_column("slots\npacked/\npairwise", justify="right", no_wrap=True)
    for row in rows:
        summary = row.summary
        table.add_row(
            Breakable(summary.subject),
            summary.dtype,
            Text(summary.verdict, style=_STYLES[summary.verdict]),
            counts_line(summary.cases_by_verdict, separator="\n"),
            count(row.num_compared),
            # In two lines: what this leaves to the names is what the longest of them needs on a terminal of 80 columns.
            f"{count(summary.slots)}/\n{count(summary.pairwise_slots)}",
        )
    return table


def _headroom_table(rows: tuple[SummaryRow, ...]) -> Table:
    table = Table(
        title="Worst measured / budget (1 is the limit)",
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("subject")
    table.add_column("dtype", no_wrap=True)
    for family in FAMILIES:
        table.add_column(family.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Breakable(row.summary.subject), row.summary.dtype, *(_ratio(item) for item in row.worst))
    return table


def _ratio(item: Ratio | None) -> Text:
    if item is None:
        return Text(NONE)
    within = item.value <= 1  # False for NaN
    return Text(number(item.value) if within else f"{number(item.value)} !", style="" if within else _STYLES["FAIL"])


def _attention(results: Sequence[ResultRecord]) -> list[RenderableType]:
    """What is not a PASS: by subject, dtype and verdict the cases furthest over budget, and the names of others."""
    together: dict[tuple[str, str, VerdictName], list[ResultRecord]] = {}
    for result in results:
        together.setdefault((result.subject, result.dtype, result.verdict), []).append(result)
    parts: list[RenderableType] = []
    for (subject, dtype, verdict), alike in together.items():
        worst_first = sorted(alike, key=_over_budget, reverse=True)
        for result in worst_first[:_MAX_RESULTS_SHOWN]:
            parts += _result(result)
        if others := [result.case for result in worst_first[_MAX_RESULTS_SHOWN:]]:
            title = f"{subject}, {dtype}, {plural(len(others), 'case')} more, {_WRITTEN}"
            parts += [Text(), _labelled(verdict, title), _indented([", ".join(others)])]
    return parts


def _over_budget(result: ResultRecord) -> float:
    """How far the worst judgement of a result is over its budget; NaN is furthest."""
    ratios = [ratio(judgement) for judgement in broken(result)]
    return max((math.inf if math.isnan(found) else found for found in ratios if found is not None), default=0.0)


def _result(result: ResultRecord) -> list[RenderableType]:
    title = f"{result.subject}, {result.dtype}, case {result.case}"
    parts: list[RenderableType] = [Text(), _labelled(result.verdict, title)]
    if reasons := own_reasons(result):
        parts.append(_indented(reasons))
    judgements = broken(result)
    parts += [_indented([finding(judgement)]) for judgement in judgements[:_MAX_JUDGEMENTS_SHOWN]]
    if (more := len(judgements) - _MAX_JUDGEMENTS_SHOWN) > 0:
        parts.append(_indented([f"and {plural(more, 'judgement')} more, {_WRITTEN}"]))
    return parts


def _exact_attention(red: Sequence[ExactGroup]) -> list[RenderableType]:
    """The exact checks that did not pass, those of one subject, dtype and verdict together."""
    together: dict[tuple[str, str, VerdictName], list[ExactGroup]] = {}
    for group in red:
        together.setdefault((group.subject, group.dtype, group.verdict), []).append(group)
    parts: list[RenderableType] = []
    for (subject, dtype, verdict), groups in together.items():
        title = f"{subject}, {dtype}, {plural(len(groups), 'exact check')}"
        lines = [f"{group.check}: {group.finding}" for group in groups]
        parts += [Text(), _labelled(verdict, title), _indented(lines)]
    return parts


def _diagnosis(diagnosis: DiagnosisRecord) -> list[RenderableType]:
    lines = [f"{name}: {text}" for name, text in diagnosis_facts(diagnosis).items()]
    return [Text(f"\nProbably wrong: {one_line(diagnosis_title(diagnosis))}", style="bold"), _indented(lines)]


def _missed(survivors: Sequence[PlantedRecord]) -> list[RenderableType]:
    """Planted faults that nothing caught: the run is blind to what they imitate."""
    title = f"{plural(len(survivors), 'fault')} planted in this run and not caught"
    lines = [f"{p.fault}, {p.stage}, {p.dtype}, on {', '.join(p.cases)}: {p.what}" for p in survivors]
    return [Text(), _labelled("INCONCLUSIVE", title), _indented(lines)]


def _left_out(record: Record) -> list[RenderableType]:
    subjects: dict[tuple[str, str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for item in not_applicable(record):
        subjects.setdefault((item.what, item.reason, item.cases, item.dtypes), []).append(item.subject)
    parts: list[RenderableType] = []
    for (what, reason, cases, dtypes), names in subjects.items():
        named = ", ".join(cases[:_MAX_CASES_NAMED])
        more = f" and {len(cases) - _MAX_CASES_NAMED} more" if len(cases) > _MAX_CASES_NAMED else ""
        which = f"{what} in {plural(len(cases), 'case')} ({named}{more})"
        parts.append(_indented([f"{listed(names)}, {', '.join(dtypes)}: {which}"]))
        parts.append(Padding(_text(reason), (0, 0, 0, 4)))
    return parts


def _labelled(verdict: VerdictName, text: str) -> Text:
    return Text.assemble((verdict, _STYLES[verdict]), "  ", one_line(text))


def _indented(lines: list[str]) -> Padding:
    return Padding(_text("\n".join(lines)), (0, 0, 0, 2))


def _text(text: str) -> Text:
    return Text(printable(text))

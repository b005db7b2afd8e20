"""A record as GitHub Markdown, for a pull request, a job summary or an archive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from reports.decisions import decisions_line
from reports.detection import families, kind, margin, missed, proof_lines, shown_faults
from reports.diagnosis import diagnosis_facts, diagnosis_title
from reports.exact import exact_groups, exact_line, exact_rows
from reports.facts import (
    data_facts,
    environment_facts,
    group_lengths,
    model_facts,
    objective_of,
    subject_facts,
    timing_facts,
)
from reports.overview import (
    FAMILIES,
    Ratio,
    broken,
    closing_line,
    counts_line,
    finding,
    needs_attention,
    not_applicable,
    own_reasons,
    policy_rows,
    run_reasons,
    slots_ratio,
    summary_rows,
)
from reports.record import Record
from reports.record_results import ResultRecord
from reports.record_setting import DataRecord
from reports.words import NO_REASON, NONE, count, number, printable

_MARKUP = re.compile(r"([\\`*\[\]<>#+|~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z]))")
"""What Markdown reads as markup; an underscore inside a word it leaves alone."""
_MAX_BLIND_SPOTS_NAMED = 6


def render(record: Record) -> str:
    """Render as GitHub Markdown.

    Args:
        record: The record.

    Returns:
        Markdown. Text that comes from the run (names, reasons, messages) is escaped.
    """
    sections: list[Iterable[str]] = [
        _head(record),
        _summary(record),
        _attention(record),
        _diagnoses(record),
        _detection(record),
        _exact(record),
        _not_applicable(record),
        _budgets(record),
        _cases(record),
        _data(record.data) if record.data else [],
        _bullets("Notes", record.notes),
        _setup(record),
    ]
    blocks = [block for section in sections for block in section]
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """The text with everything escaped that Markdown or a table row would read as markup, on one line.

    Args:
        text: Any text.

    Returns:
        Markdown that shows the text.
    """
    one_line = " ".join(printable(text).split())
    return _MARKUP.sub(r"\\\1", one_line.replace("&", "&amp;"))


def _head(record: Record) -> Iterable[str]:
    yield f"# {record.verdict}: packed against unpacked on {escape(record.model.name)}"
    yield f"**{record.verdict}** · {escape(closing_line(record))}"
    yield _list(
        [
            line
            for line in (exact_line(record), decisions_line(record), *proof_lines(record, _MAX_BLIND_SPOTS_NAMED))
            if line
        ]
    )
    if reasons := run_reasons(record):
        yield _list(reasons)


def _summary(record: Record) -> Iterable[str]:
    yield "## Summary"
    header = ["subject", "dtype", "verdict", "cases", "values", "slots packed / pairwise", *FAMILIES]
    rows = []
    for row in summary_rows(record):
        summary = row.summary
        slots = f"{count(summary.slots)} / {count(summary.pairwise_slots)} = {number(slots_ratio(summary))}"
        cells = [
            escape(summary.subject),
            summary.dtype,
            summary.verdict if summary.verdict == "PASS" else f"**{summary.verdict}**",
            counts_line(summary.cases_by_verdict),
            count(row.num_compared),
            slots,
        ]
        rows.append(cells + [_ratio(item) for item in row.worst])
    yield _table(header, rows)
    yield "Under each quantity: the worst measured / budget; 1 is the limit."


def _ratio(item: Ratio | None) -> str:
    if item is None:
        return NONE
    return number(item.value) if item.value <= 1 else f"**{number(item.value)}**"


def _attention(record: Record) -> Iterable[str]:
    lines = [
        f"- **{summary.verdict}** {escape(f'{summary.subject}, {summary.dtype}, all cases')}: "
        f"{escape('; '.join(summary.reasons))}"
        for summary in record.summaries
        if summary.verdict not in ("PASS", "NOT_APPLICABLE") and summary.reasons
    ]
    for result in needs_attention(record):
        lines += _result(result)
    for group in exact_groups(record):
        if group.is_red:
            title = escape(f"{group.subject}, {group.dtype}, exact check {group.check}")
            lines.append(f"- **{group.verdict}** {title}: {escape(group.finding)}")
    lines += [
        f"- **INCONCLUSIVE** {escape(f'planted fault {one.fault}, {one.dtype}, was not caught: {one.what}')}"
        for one in missed(record)
    ]
    if lines:
        yield "## What did not pass"
        yield "\n".join(lines)


def _result(result: ResultRecord) -> Iterable[str]:
    name = escape(f"{result.subject}, {result.dtype}, case {result.case}")
    reasons = own_reasons(result) or ([] if broken(result) else [NO_REASON])
    yield f"- **{result.verdict}** {name}{escape(': ' + '; '.join(reasons)) if reasons else ''}"
    for judgement in broken(result):
        yield f"  - {escape(finding(judgement))}"


def _diagnoses(record: Record) -> Iterable[str]:
    if not record.diagnoses:
        return
    yield "## What is probably wrong"
    for diagnosis in record.diagnoses:
        yield f"### {escape(diagnosis_title(diagnosis))}"
        yield _facts(diagnosis_facts(diagnosis))


def _detection(record: Record) -> Iterable[str]:
    """Full tables of what the opening lines sum up."""
    if record.planted:
        yield "## What this run would have caught"
        columns = families(record)
        rows = [
            [
                escape(planted.fault),
                escape(planted.stage),
                planted.dtype,
                escape(", ".join(planted.cases)),
                "yes" if planted.killed else "**no**",
                *(margin(planted, family) for family in columns),
                escape(planted.what),
            ]
            for planted in record.planted
        ]
        yield _table(["planted fault", "stage", "dtype", "case", "caught", *columns, "what is different"], rows)
        yield "Under each family of checks: the fault's largest measured / budget; beyond 1 it is caught."
    if record.blind_spots:
        yield "## What it would not have seen"
        rows = [
            [escape(kind(spot)), escape(spot.why), escape(shown_faults(spot.faults))] for spot in record.blind_spots
        ]
        yield _table(["kind", "why", "faults of the catalogue"], rows)


def _exact(record: Record) -> Iterable[str]:
    if record.exact_checks:
        yield "## Exact checks"
        rows = [[escape(row.check), row.cases, escape(row.subjects)] for row in exact_rows(record)]
        yield _table(["check", "cases", "subjects"], rows)
        yield "Cases by verdict; these checks have no tolerance, or one that follows from rounding alone."


def _not_applicable(record: Record) -> Iterable[str]:
    rows = [
        [escape(text) for text in (item.subject, ", ".join(item.dtypes), item.what, ", ".join(item.cases), item.reason)]
        for item in not_applicable(record)
    ]
    if rows:
        yield "## Not applicable"
        yield _table(["subject", "dtypes", "what", "cases", "reason"], rows)


def _budgets(record: Record) -> Iterable[str]:
    yield "## Budgets"
    rows = [[escape(row.name), escape(row.values), escape(row.rationale) or NONE] for row in policy_rows(record.policy)]
    if rows:
        yield _table(["policy", "values", "rationale"], rows)
    if record.variations:
        yield "The noise floor is the spread of these harmless variations of the unpacked witness:"
        yield _list(record.variations)


def _cases(record: Record) -> Iterable[str]:
    yield "## Cases"
    rows = [
        [escape(case.name), objective_of(case), "<br>".join(group_lengths(case)), escape(case.why)]
        for case in record.cases
    ]
    yield _table(["case", "objective", "prompt → positives / negatives, in tokens (supervised)", "why"], rows)


def _data(data: DataRecord) -> Iterable[str]:
    yield "## Data"
    yield _facts(data_facts(data))
    if data.violations_by_reason:
        rows = [[escape(reason), count(amount)] for reason, amount in data.violations_by_reason.items()]
        yield _table(["rows that break a precondition", "number"], rows)
    if data.violations:
        yield "The first of them:"
        yield _list(data.violations)
    if data.notes:
        yield "On the data:"
        yield _list(data.notes)


def _setup(record: Record) -> Iterable[str]:
    yield "## Model"
    yield _facts(model_facts(record))
    if record.subjects:
        yield "## Subjects"
        yield _facts(subject_facts(record))
    yield "## Environment"
    yield _facts(environment_facts(record))
    yield "## Timing"
    yield _facts(timing_facts(record))


def _bullets(title: str, lines: Sequence[str]) -> Iterable[str]:
    if lines:
        yield f"## {title}"
        yield _list(lines)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)


def _facts(facts: dict[str, str]) -> str:
    return _table(["", ""], [[escape(name), escape(value)] for name, value in facts.items()])


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

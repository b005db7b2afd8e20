"""Sharded parity as GitHub Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.markdown import escape
from reports.sharded_overview import (
    closing_line,
    data_rows,
    not_applicable,
    objective_line,
    planted_line,
    ranks_line,
    subject_rows,
    title,
)
from reports.sharded_record import AGAINST, CheckRecord, ShardedRecord
from reports.words import depth, number, setting

_EXPLANATION = """\
Each rank ran its own groups on a model that FSDP2 has sharded. Log-probs, rewards, the loss and the gathered gradients
were held first against the same subject in one process, then against the float64 oracle and the unpacked path, within
the budgets of the gate. The number is the largest measured difference over its budget: 1 is the limit."""


def render(record: ShardedRecord) -> str:
    """Render as Markdown.

    Args:
        record: The record.

    Returns:
        A whole document; equal records give equal text.
    """
    return "\n\n".join(_blocks(record)) + "\n"


def _blocks(record: ShardedRecord) -> Iterable[str]:
    yield f"# {record.verdict}: sharded parity of {escape(title(record))}"
    yield f"{escape(closing_line(record))}. {escape(ranks_line(record))}."
    if record.reasons:
        yield "## Why"
        yield _list(record.reasons)
    yield "## Parity"
    yield _EXPLANATION
    yield _table(
        ("subject", "precision", "verdict", "scenarios passed", *(f"to {against}" for against in AGAINST), "values"),
        [
            (r.subject, r.precision, r.verdict, f"{r.passed} of {r.judged}", *r.worst, f"{r.num_compared:,}")
            for r in subject_rows(record)
        ],
    )
    yield _table(
        ("scenario", "subject", "precision", "verdict", "groups of ranks", "dummy calls of ranks", "worst"),
        [
            (
                result.scenario,
                result.subject,
                result.precision,
                result.verdict,
                _numbers(result.groups_of_ranks),
                _numbers(result.dummies_of_ranks),
                number(result.worst_ratio),
            )
            for result in record.parity
            if result.verdict != "NOT_APPLICABLE"
        ],
    )
    if record.checks:
        yield "## Checks"
        yield _table(
            ("check", "precision", "subject", "verdict", "values", "measured / allowed", "worst"),
            [_check(check) for check in record.checks],
        )
    if record.planted:
        yield "## Planted faults"
        yield escape(planted_line(record)) + "."
        yield _table(
            ("fault", "what is wrong", "precision", "caught by", "measured / allowed"),
            [
                (
                    planted.fault,
                    planted.what,
                    planted.precision,
                    ", ".join(planted.caught_by) or "**nothing**",
                    ", ".join(f"{check.check} {number(check.ratio)}" for check in planted.checks),
                )
                for planted in record.planted
            ],
        )
    if record.harmless:
        yield "## Harmless changes"
        yield _table(
            ("change", "what is other", "precision", "flagged by"),
            [(c.change, c.what, c.precision, ", ".join(c.flagged_by) or "nothing") for c in record.harmless],
        )
    if record.data is not None:
        yield "## Data"
        yield _table(("", ""), data_rows(record.data).items())
        if lines := [*record.data.notes, *record.data.violations]:
            yield _list(lines)
    if lines := not_applicable(record):
        yield "## Not applicable"
        yield _list(lines)
    if record.notes:
        yield "## Notes"
        yield _list(record.notes)
    yield "## Setup"
    yield _table(("", ""), _setup(record))


def _setup(record: ShardedRecord) -> Iterable[Sequence[str]]:
    environment = record.environment
    yield "model", f"{record.model.name}, {depth(record.model)}, {record.model.weights}"
    if record.objective:
        yield "objective", objective_line(record)
    for precision in record.precisions:
        yield precision.name, f"{precision.weights} shards, {precision.computes} passes, {precision.reduces} reduction"
    yield "ranks", f"{record.world_size} over {record.backend}, started by {record.started_by}"
    yield "device", f"{environment.device}, {environment.processor}, threads of each rank: {environment.num_threads}"
    yield "versions", setting(dict(environment.packages))
    yield "seeds", setting(dict(record.seeds))
    yield "packparity", f"{record.tool_version}, {record.created_utc}, {' '.join(record.command)}"


def _check(check: CheckRecord) -> Sequence[str]:
    values = f"{check.num_compared:,}"
    return (check.check, check.precision, check.subject, check.verdict, values, number(check.ratio), check.worst)


def _numbers(counts: Sequence[int]) -> str:
    return " ".join(map(str, counts))


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [[cell if cell == "**nothing**" else escape(cell) for cell in row] for row in rows]
    lines = [header, ["---"] * len(header), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

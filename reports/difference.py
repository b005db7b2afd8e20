"""Two results of one kind held against each other: what was asked for, which verdicts changed, how ratios moved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from reports.facts import group_lengths
from reports.kill_matrix import KillMatrix
from reports.overview import FAMILIES, summary_rows
from reports.record import Record
from reports.results import Result
from reports.store import RecordError
from reports.words import NONE, plural, setting

MOVED = 2.0
"""A ratio that grew or shrank by this factor is named; rounding alone moves one by less."""

_SETTINGS = (
    "tool_version", "environment", "model", "objective", "seeds", "policy", "variations", "data", "cases", "kernels",
)  # fmt: skip
_NO_SETTINGS = ("rationale", "what", "why_harmless", "notes", "violations")
"""Fields that explain a setting: a change of words is none of the setting."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is not the same in both results.

    Args:
        what: A setting's path, or what a verdict is about.
        before: In the first result; "-" where it has none.
        after: In the second one.
    """

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RatioPair:
    """Measured / budget in both results.

    Args:
        what: What was measured.
        before: In the first result; None where it was not measured.
        after: In the second one.
    """

    what: str
    before: float | None
    after: float | None

    @property
    def moved(self) -> bool:
        """Whether it changed by more than rounding would."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        if self.before == self.after or (math.isnan(self.before) and math.isnan(self.after)):
            return False
        low, high = sorted((self.before, self.after))
        return not high < MOVED * low  # NaN has moved


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two results.

    Args:
        kind: What both are.
        titles: Verdict and time of each.
        settings: What was asked for, and with which versions.
        verdicts: Verdicts and outcomes that changed, or that only one of them has.
        num_verdicts: How many verdicts there are over both.
        ratios: The worst measured / budget of each thing that was measured.
    """

    kind: str
    titles: tuple[str, str]
    settings: tuple[Change, ...]
    verdicts: tuple[Change, ...]
    num_verdicts: int
    ratios: tuple[RatioPair, ...]

    @property
    def moved(self) -> tuple[RatioPair, ...]:
        """The ratios that changed by more than rounding would."""
        return tuple(pair for pair in self.ratios if pair.moved)


def compare(before: Result, after: Result) -> Difference:
    """Hold two results against each other.

    Args:
        before: The first.
        after: The second, of the same kind.

    Returns:
        What differs.

    Raises:
        RecordError: They are not of one kind.
    """
    if isinstance(before, Record) and isinstance(after, Record):
        verdicts, ratios = (_verdicts(before), _verdicts(after)), (_ratios(before), _ratios(after))
    elif isinstance(before, KillMatrix) and isinstance(after, KillMatrix):
        verdicts, ratios = (_outcomes(before), _outcomes(after)), (_margins(before), _margins(after))
    else:
        raise RecordError(f"a {_kind(before)} and a {_kind(after)} cannot be compared: give two results of one command")
    settings = (dict(_settings(before)), dict(_settings(after)))
    return Difference(
        kind=_kind(before),
        titles=(f"{before.verdict}, {before.created_utc}", f"{after.verdict}, {after.created_utc}"),
        settings=tuple(_changes(*settings)),
        verdicts=tuple(_changes(*verdicts)),
        num_verdicts=len(verdicts[0] | verdicts[1]),
        ratios=tuple(RatioPair(what, ratios[0].get(what), ratios[1].get(what)) for what in ratios[0] | ratios[1]),
    )


def closing_line(difference: Difference) -> str:
    """The whole comparison in one line."""
    return (
        f"{plural(len(difference.verdicts), 'verdict')} of {difference.num_verdicts} changed, "
        f"{plural(len(difference.moved), 'ratio')} of {len(difference.ratios)} moved by a factor of {MOVED:g} or more, "
        f"{plural(len(difference.settings), 'setting')} differ"
    )


def _kind(result: Result) -> str:
    return "record of packparity check" if isinstance(result, Record) else "kill matrix of packparity faults"


def _changes(before: dict[str, str], after: dict[str, str]) -> Iterator[Change]:
    for what in before | after:
        one, other = before.get(what, NONE), after.get(what, NONE)
        if one != other:
            yield Change(what, one, other)


def _settings(result: Result) -> Iterator[tuple[str, str]]:
    for name in _SETTINGS:
        value = getattr(result, name, None)
        if name == "cases":
            value = {case.name: "; ".join(group_lengths(case)) for case in result.cases}
        elif name == "kernels" and value is not None:
            value = [kernel.name for kernel in value]
        if value is not None:
            yield from _flat(name, value.model_dump() if isinstance(value, BaseModel) else value)


def _flat(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Settings by their paths: {"a": {"b": 1}} gives ("a.b", "1")."""
    if not isinstance(value, dict):
        yield path, setting(value)
        return
    for key, inner in value.items():
        if key not in _NO_SETTINGS:
            yield from _flat(f"{path}.{key}", inner)


def _verdicts(record: Record) -> dict[str, str]:
    verdicts: dict[str, str] = {"the run": record.verdict}
    verdicts |= {f"{s.subject}, {s.dtype}": s.verdict for s in record.summaries}
    verdicts |= {f"{r.subject}, {r.dtype}, case {r.case}": r.verdict for r in record.results}
    verdicts |= {f"{e.subject}, {e.dtype}, {e.check} on {e.case}": e.verdict for e in record.exact_checks}
    planted = {f"planted {p.fault}, {p.dtype}": "killed" if p.killed else "survived" for p in record.planted}
    return verdicts | planted


def _ratios(record: Record) -> dict[str, float]:
    return {
        f"{row.summary.subject}, {row.summary.dtype}: {family}": worst.value
        for row in summary_rows(record)
        for family, worst in zip(FAMILIES, row.worst, strict=True)
        if worst is not None
    }


def _outcomes(matrix: KillMatrix) -> dict[str, str]:
    return {"the run": str(matrix.verdict)} | {f"{m.label}, {m.dtype}": str(m.outcome) for m in matrix.mutations}


def _margins(matrix: KillMatrix) -> dict[str, float]:
    return {f"{m.label}, {m.dtype}": m.margin for m in matrix.mutations}

"""Two results of one kind held against each other: what was asked for, which verdicts changed, how ratios moved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from reports.cost_overview import summary as cost_summary
from reports.cost_record import CostRecord
from reports.data_overview import headline
from reports.data_record import DataReport
from reports.facts import group_lengths
from reports.families_overview import summary
from reports.families_record import FamiliesRecord
from reports.forecast_overview import amounts, outcomes
from reports.forecast_overview import verdict as forecast_verdict
from reports.forecast_record import ForecastRecord
from reports.kill_matrix import KillMatrix
from reports.overview import FAMILIES, summary_rows
from reports.preflight_record import PreflightFinding, PreflightRecord
from reports.record import Record
from reports.results import Result
from reports.sharded_overview import outcomes as sharded_outcomes
from reports.sharded_overview import worst_ratios
from reports.sharded_record import ShardedRecord
from reports.store import RecordError
from reports.words import NONE, count, plural, setting

MOVED = 2.0
"""A ratio that grew or shrank by this factor is named; rounding alone moves one by less."""
PREDICTION_MOVED = 1.01
"""The same for what is predicted, which is exact, or simulated with a seed."""
COST_MOVED = 1.05
"""The same for ratios of step times, which move a little from run to run."""

_SETTINGS = (
    "tool_version", "environment", "model", "objective", "seeds", "policy", "variations", "data", "cases", "kernels",
)  # fmt: skip
_DATA_SETTINGS = (
    "tool_version", "file", "sha256", "shape", "unit_note", "tokenizer", "model", "max_length", "max_tokens",
    "most_broken_share",
)  # fmt: skip
_COST_SETTINGS = (
    "tool_version", "environment", "machine", "model", "dtype", "objective", "optimizer", "preset", "scale", "seeds",
    "num_ranks", "pairs_per_rank", "sharding", "memory_measure", "data",
)  # fmt: skip
_FAMILIES_SETTINGS = ("tool_version", "environment", "seed", "seconds_per_family", "ways")
_FORECAST_SETTINGS = ("tool_version", "environment", "step", "device", "assumptions")
_SHARDED_SETTINGS = (
    "tool_version", "environment", "world_size", "backend", "model", "objective", "precisions", "scenarios", "policy",
    "seeds",
)  # fmt: skip
_PREFLIGHT_SETTINGS = ("tool_version", "environment", "request", "world_size", "ranks", "required")
_SIMULATION_SETTINGS = ("groups_sampled", "seed", "num_ranks", "groups_per_rank", "row_limit")
_WHAT_RATIOS: dict[type, tuple[str, float]] = {
    DataReport: ("predicted", PREDICTION_MOVED),
    FamiliesRecord: ("share of a full leak", MOVED),
    ForecastRecord: ("forecast", PREDICTION_MOVED),
    PreflightRecord: ("measured", MOVED),
    CostRecord: ("measured cost over that of padded", COST_MOVED),
}
"""What the ratios are, and by which factor one has to move to be named, where they are not measured / budget."""
_FLAT_SETTINGS: dict[type, tuple[str, ...]] = {
    FamiliesRecord: _FAMILIES_SETTINGS,
    CostRecord: _COST_SETTINGS,
    PreflightRecord: _PREFLIGHT_SETTINGS,
    ForecastRecord: _FORECAST_SETTINGS,
    ShardedRecord: _SHARDED_SETTINGS,
}
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
    """One ratio in both results: measured / budget, or packed / unpacked.

    Args:
        what: What was measured.
        before: In the first result; None where it was not measured.
        after: In the second one.
        factor: By which it has to grow or shrink to be named.
    """

    what: str
    before: float | None
    after: float | None
    factor: float = MOVED

    @property
    def moved(self) -> bool:
        """Whether it changed by more than rounding would."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        if self.before == self.after or (math.isnan(self.before) and math.isnan(self.after)):
            return False
        low, high = sorted((self.before, self.after))
        return not high < self.factor * low  # NaN has moved


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two results.

    Args:
        kind: What both are.
        titles: Verdict and time of each.
        settings: What was asked for, and with which versions.
        verdicts: Verdicts and outcomes that changed, or that only one of them has.
        num_verdicts: How many verdicts there are over both.
        ratios: The worst measured / budget of each thing that was measured, or what is predicted.
        what_ratios: What the ratios are, as a heading.
        factor: By which a ratio has to grow or shrink to be named.
    """

    kind: str
    titles: tuple[str, str]
    settings: tuple[Change, ...]
    verdicts: tuple[Change, ...]
    num_verdicts: int
    ratios: tuple[RatioPair, ...]
    what_ratios: str = "worst measured / budget"
    factor: float = MOVED

    @property
    def moved(self) -> tuple[RatioPair, ...]:
        """The ratios that changed by more than rounding would."""
        return tuple(pair for pair in self.ratios if pair.moved)


def named(changes: tuple[Change, ...]) -> list[tuple[str, str, str]]:
    """Rows for a table of changes: of what only one result has, a subject say, the whole and not each of its parts.

    Args:
        changes: Changes; a part is called as its whole, a comma and more.

    Returns:
        What, before and after.
    """
    only = [change for change in changes if NONE in (change.before, change.after)]
    wholes = {(change.what, change.before == NONE): 0 for change in only}
    parts: set[str] = set()
    for change in only:
        words = change.what.split(", ")
        ways = ((", ".join(words[:n]), change.before == NONE) for n in range(1, len(words)))
        whole = next((way for way in ways if way in wholes), None)
        if whole is not None:
            wholes[whole] += 1
            parts.add(change.what)
    rows = []
    for change in changes:
        count_of_parts = wholes.get((change.what, change.before == NONE), 0)
        more = f", with {plural(count_of_parts, 'verdict')} of its own" if count_of_parts else ""
        if change.what not in parts:
            rows.append((change.what + more, change.before, change.after))
    return rows


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
    elif isinstance(before, DataReport) and isinstance(after, DataReport):
        verdicts, ratios = (_findings(before), _findings(after)), (_predictions(before), _predictions(after))
    elif isinstance(before, FamiliesRecord) and isinstance(after, FamiliesRecord):
        verdicts, ratios = (_ways(before), _ways(after)), (_scores(before), _scores(after))
    elif isinstance(before, ForecastRecord) and isinstance(after, ForecastRecord):
        verdicts, ratios = (outcomes(before), outcomes(after)), (amounts(before), amounts(after))
    elif isinstance(before, PreflightRecord) and isinstance(after, PreflightRecord):
        verdicts, ratios = (_decisions(before), _decisions(after)), (_measures(before), _measures(after))
    elif isinstance(before, CostRecord) and isinstance(after, CostRecord):
        verdicts, ratios = (_paths(before), _paths(after)), (_costs(before), _costs(after))
    elif isinstance(before, ShardedRecord) and isinstance(after, ShardedRecord):
        verdicts = (sharded_outcomes(before), sharded_outcomes(after))
        ratios = (worst_ratios(before), worst_ratios(after))
    else:
        raise RecordError(f"a {_kind(before)} and a {_kind(after)} cannot be compared: give two results of one command")
    settings = (dict(_settings(before)), dict(_settings(after)))
    what_ratios, factor = _WHAT_RATIOS.get(type(before), ("worst measured / budget", MOVED))
    return Difference(
        kind=_kind(before),
        titles=(_title(before), _title(after)),
        settings=tuple(_changes(*settings)),
        verdicts=tuple(_changes(*verdicts)),
        num_verdicts=len(verdicts[0] | verdicts[1]),
        ratios=tuple(
            RatioPair(what, ratios[0].get(what), ratios[1].get(what), factor) for what in ratios[0] | ratios[1]
        ),
        what_ratios=what_ratios,
        factor=factor,
    )


def closing_line(difference: Difference) -> str:
    """The whole comparison in one line."""
    settings = plural(len(difference.settings), "setting differs", "settings differ")
    return (
        f"{plural(len(difference.verdicts), 'verdict')} of {difference.num_verdicts} changed, "
        f"{plural(len(difference.moved), 'ratio')} of {len(difference.ratios)} moved by a factor of "
        f"{difference.factor:g} or more, {settings}"
    )


def _kind(result: Result) -> str:
    if isinstance(result, DataReport):
        return "report of packparity data"
    if isinstance(result, FamiliesRecord):
        return "report of packparity families"
    if isinstance(result, ForecastRecord):
        return "forecast"
    if isinstance(result, PreflightRecord):
        return "preflight"
    if isinstance(result, CostRecord):
        return "record of packparity cost"
    if isinstance(result, ShardedRecord):
        return "record of packparity sharded"
    return "record of packparity check" if isinstance(result, Record) else "kill matrix of packparity faults"


def _title(result: Result) -> str:
    if isinstance(result, DataReport):
        verdict = headline(result)
    elif isinstance(result, FamiliesRecord):
        verdict = summary(result)
    elif isinstance(result, ForecastRecord):
        verdict = forecast_verdict(result)
    elif isinstance(result, PreflightRecord):
        verdict = result.decision
    elif isinstance(result, CostRecord):
        verdict = cost_summary(result)
    else:
        verdict = result.verdict
    return f"{verdict}, {result.created_utc}"


def _changes(before: dict[str, str], after: dict[str, str]) -> Iterator[Change]:
    for what in before | after:
        one, other = before.get(what, NONE), after.get(what, NONE)
        if one != other:
            yield Change(what, one, other)


def _settings(result: Result) -> Iterator[tuple[str, str]]:
    if isinstance(result, DataReport):
        yield from _settings_of_data(result)
        return
    if isinstance(result, FamiliesRecord | CostRecord | PreflightRecord | ForecastRecord | ShardedRecord):
        for name in _FLAT_SETTINGS[type(result)]:
            yield from _flat(name, result.model_dump(include={name})[name])
        if isinstance(result, CostRecord):
            for workload in result.workloads:
                yield f"steps of {workload.name}, seed {workload.seed}", setting(workload.num_rounds)
        return
    for name in _SETTINGS:
        value = getattr(result, name, None)
        if name == "cases":
            value = {case.name: "; ".join(group_lengths(case)) for case in result.cases}
        elif name == "kernels" and value is not None:
            value = [kernel.name for kernel in value]
        if value is not None:
            yield from _flat(name, value.model_dump() if isinstance(value, BaseModel) else value)


def _settings_of_data(report: DataReport) -> Iterator[tuple[str, str]]:
    for name in _DATA_SETTINGS:
        yield from _flat(name, report.model_dump(include={name})[name])
    if report.simulation is not None:
        for name in _SIMULATION_SETTINGS:
            yield f"simulation.{name}", setting(getattr(report.simulation, name))


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


def _ways(record: FamiliesRecord) -> dict[str, str]:
    """What came of each way of each family; of one that was not measured, its state."""
    found = {f"{family.model_type}, {way}": family.state for family in record.families for way in record.ways}
    measured = {f"{family.model_type}, {way.way}": way.outcome for family in record.families for way in family.ways}
    return {what: str(outcome) for what, outcome in (found | measured).items()}


def _scores(record: FamiliesRecord) -> dict[str, float]:
    """Of what leaks: the scores of the others are rounding."""
    return {
        f"{family.model_type}, {way.way}": way.score
        for family in record.families
        for way in family.ways
        if way.score is not None and way.outcome in ("leaks", "other-values")
    }


def _decisions(record: PreflightRecord) -> dict[str, str]:
    return {"the run": record.decision} | {_place(finding): finding.outcome for finding in record.findings}


def _measures(record: PreflightRecord) -> dict[str, float]:
    return {
        f"{_place(finding)}: {name}": value for finding in record.findings for name, value in finding.measures.items()
    }


def _place(finding: PreflightFinding) -> str:
    return finding.name if finding.rank is None else f"{finding.name}, rank {finding.rank}"


def _paths(record: CostRecord) -> dict[str, str]:
    verified = {path.name: "parity PASS" if path.parity else "unverified" for path in record.paths}
    return {path.name: path.state if path.reason else verified[path.name] for path in record.paths}


def _costs(record: CostRecord) -> dict[str, float]:
    """Time and memory of every path over those of the padded one."""
    ratios: dict[str, float] = {}
    for workload in record.workloads:
        for ratio in workload.ratios:
            if ratio.over == "padded":
                ratios[f"{workload.name}, {ratio.path}: time"] = ratio.time.value
                if ratio.memory is not None:
                    ratios[f"{workload.name}, {ratio.path}: memory"] = ratio.memory
    return ratios


def _findings(report: DataReport) -> dict[str, str]:
    counted = {f"rows, {each.name}": count(each.rows) for each in (*report.violations, *report.remarks)}
    return {"advice": headline(report), "rows": count(report.rows_read), "usable": count(report.rows_usable)} | counted


def _predictions(report: DataReport) -> dict[str, float]:
    ratios: dict[str, float | None] = {}
    if report.algebra is not None:
        names = ("token_ratio", "flop_ratio", "memory_ratio", "eq1_ratio")
        ratios |= {f"packed / unpacked, {name.removesuffix('_ratio')}": getattr(report.algebra, name) for name in names}
    if report.simulation is not None:
        ratios |= {f"speed-up, {plan.plan}": plan.speed_up for plan in report.simulation.plans}
        ratios |= {f"filled, {plan.plan}": plan.token_utilisation for plan in report.simulation.plans}
    return {what: ratio for what, ratio in ratios.items() if ratio is not None}

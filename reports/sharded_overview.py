"""What all renderings of sharded parity say in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.facts import data_facts
from reports.record_names import NOT_A_PASS, VerdictName
from reports.record_setting import DataRecord
from reports.sharded_record import AGAINST, Against, ParityRecord, ShardedRecord
from reports.words import listed, number, plural, setting


@dataclass(frozen=True, slots=True)
class SubjectRow:
    """One subject in one precision, over all scenarios.

    Args:
        subject: Its name.
        precision: Name of the precision.
        verdict: The worst of its scenarios.
        passed: Scenarios that passed.
        judged: Scenarios that it ran in.
        worst: Largest measured / budget, by what the step was held against.
        num_compared: Values compared.
    """

    subject: str
    precision: str
    verdict: VerdictName
    passed: int
    judged: int
    worst: Sequence[str]
    num_compared: int


def subject_rows(record: ShardedRecord) -> list[SubjectRow]:
    """One row for each precision and subject."""
    rows = []
    for precision in record.precisions:
        for subject in record.subjects:
            results = [r for r in record.parity if (r.precision, r.subject) == (precision.name, subject.name)]
            judged = [result for result in results if result.verdict != "NOT_APPLICABLE"]
            verdict = next((v for v in NOT_A_PASS if any(r.verdict == v for r in judged)), None)
            rows.append(
                SubjectRow(
                    subject=subject.name,
                    precision=precision.name,
                    verdict=verdict or ("PASS" if judged else "NOT_APPLICABLE"),
                    passed=sum(result.verdict == "PASS" for result in judged),
                    judged=len(judged),
                    worst=[_worst(judged, against) for against in AGAINST],
                    num_compared=sum(result.num_compared for result in judged),
                )
            )
    return rows


def _worst(results: Sequence[ParityRecord], against: Against) -> str:
    ratios = [
        each.judgement.measured / each.judgement.budget
        for result in results
        for each in result.held
        if each.against == against and each.judgement.measured is not None and each.judgement.budget
    ]
    return number(max(ratios)) if ratios else ""


def outcomes(record: ShardedRecord) -> dict[str, str]:
    """Every verdict of a run, by what it is about."""
    parity = {f"{r.subject}, {r.precision}, {r.scenario}": r.verdict for r in record.parity}
    checks = {f"{c.check}, {c.precision}": c.verdict for c in record.checks}
    planted = {f"planted {p.fault}, {p.precision}": "caught" if p.caught_by else "not caught" for p in record.planted}
    harmless = {f"harmless {h.change}, {h.precision}": "flagged" if h.flagged_by else "passed" for h in record.harmless}
    return {"the run": str(record.verdict)} | {**parity, **checks, **planted, **harmless}


def worst_ratios(record: ShardedRecord) -> dict[str, float]:
    """The worst measured / budget of each subject in each scenario, and measured / allowed of each check."""
    parity = {
        f"{r.subject}, {r.precision}, {r.scenario}": r.worst_ratio for r in record.parity if r.worst_ratio is not None
    }
    return parity | {f"{c.check}, {c.precision}": c.ratio for c in record.checks}


def not_applicable(record: ShardedRecord) -> list[str]:
    """Who was not run where, once for each reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in record.parity:
        if result.verdict == "NOT_APPLICABLE":
            scenarios = found.setdefault((result.subject, result.reasons[0]), [])
            if result.scenario not in scenarios:
                scenarios.append(result.scenario)
    return [f"{subject} in {listed(scenarios)}: {reason}" for (subject, reason), scenarios in found.items()]


def ranks_line(record: ShardedRecord) -> str:
    """How many ranks there were, and what each had."""
    ran = [result for result in record.parity if result.groups_of_ranks]
    uneven = len({tuple(result.groups_of_ranks) for result in ran if len(set(result.groups_of_ranks)) > 1})
    idle = sum(0 in result.groups_of_ranks for result in ran)
    dummies = sum(sum(result.dummies_of_ranks) for result in ran)
    return (
        f"{plural(record.world_size, 'rank')} over {record.backend}: {plural(uneven, 'uneven division')} of groups, "
        f"{plural(idle, 'step')} with a rank that had none, {plural(dummies, 'call')} that added nothing"
    )


def data_rows(data: DataRecord) -> dict[str, str]:
    """Where real pairs came from, and the rows that were left out."""
    left_out = {f"left out: {reason}": f"{amount:,}" for reason, amount in data.violations_by_reason.items()}
    return data_facts(data) | left_out


def data_line(data: DataRecord) -> str:
    """The same in one line."""
    reasons = ", ".join(f"{reason} {amount:,}" for reason, amount in data.violations_by_reason.items())
    return f"{plural(data.num_pairs, 'real pair')} of {data.usable_rows:,} usable ones in {data.file}" + (
        f"; left out: {reasons}" if reasons else ""
    )


def planted_line(record: ShardedRecord) -> str:
    """How many of the planted faults were caught, and that harmless changes were not taken for faults."""
    caught = sum(bool(planted.caught_by) for planted in record.planted)
    line = f"{caught} of {plural(len(record.planted), 'planted fault')} caught"
    if record.harmless:
        quiet = sum(not change.flagged_by for change in record.harmless)
        line += f"; {quiet} of {plural(len(record.harmless), 'harmless change')} passed"
    return line


def closing_line(record: ShardedRecord) -> str:
    """What the verdict rests on."""
    compared = sum(result.num_compared for result in record.parity)
    return f"sharded parity: {compared:,} values compared, {planted_line(record)}, {record.total_s:.1f} s"


def title(record: ShardedRecord) -> str:
    """What was run."""
    trained = ", every weight trained" if record.model.train == "all" else ""
    precisions = ", ".join(precision.name for precision in record.precisions)
    return f"{record.model.name}{trained}{_unusual(record)}, {plural(record.world_size, 'rank')}, {precisions}"


def _unusual(record: ShardedRecord) -> str:
    """The objective and the frozen policy, where they are not those of a run that names none."""
    name, reference = (str(record.objective.get(key) or "") for key in ("name", "reference"))
    usual = "separate-model" if record.model.train == "all" else "adapters-off"
    over = f" over {reference}" if reference not in ("", usual) else ""
    if name in ("", "sigmoid"):
        return f", sigmoid{over}" if over else ""
    return f", {name}{over}"


def objective_line(record: ShardedRecord) -> str:
    """The objective with its parameters and its frozen policy; "" of a record that does not say."""
    return setting(dict(record.objective))

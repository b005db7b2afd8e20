"""What a record of sharded parity must agree with itself about beyond its verdicts: names, the grid of results, ranks.

A record that was edited by hand is refused where one part of it gives another away; it is no proof against forgery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING

from reports.record_names import NOT_A_PASS, VerdictName

if TYPE_CHECKING:
    from reports.sharded_record import ParityRecord, ShardedRecord


def inconsistencies(record: ShardedRecord) -> Iterator[str]:
    """Where parts of a record contradict each other.

    Args:
        record: Whose parts are each sound.

    Yields:
        One sentence for each contradiction; none for a record as a run writes it.
    """
    yield from _twice(record)
    yield from _unknown_names(record)
    yield from _objective(record)
    yield from _gaps(record)
    yield from _ranks(record)
    if record.verdict != (verdict := _folded(record)):
        yield f"the run is {record.verdict}, but its parts make it {verdict}"


def _twice(record: ShardedRecord) -> Iterator[str]:
    listed: tuple[tuple[str, Iterable[object]], ...] = (
        ("case", (case.name for case in record.cases)),
        ("scenario", (scenario.name for scenario in record.scenarios)),
        ("subject", (subject.name for subject in record.subjects)),
        ("precision", (precision.name for precision in record.precisions)),
        ("check", ((check.check, check.precision) for check in record.checks)),
        ("planted fault", ((planted.fault, planted.precision) for planted in record.planted)),
        ("harmless change", ((change.change, change.precision) for change in record.harmless)),
    )
    for what, names in listed:
        yield from (f"{what} {name} is there {count} times" for name, count in Counter(names).items() if count > 1)


def _unknown_names(record: ShardedRecord) -> Iterator[str]:
    cases = {case.name for case in record.cases}
    subjects = {subject.name for subject in record.subjects}
    precisions: set[str] = {precision.name for precision in record.precisions}
    yield from (
        f"scenario {scenario.name} is of case {scenario.case}, which is not among the cases"
        for scenario in record.scenarios
        if scenario.case not in cases
    )
    tried = [(f"planted fault {each.fault}", each.precision, each.checks) for each in record.planted]
    tried += [(f"harmless change {each.change}", each.precision, each.checks) for each in record.harmless]
    parts = [(f"check {check.check}", check.precision, [check]) for check in record.checks]
    for what, precision, checks in (*parts, *tried):
        if precision not in precisions:
            yield f"{what} is in {precision}, which is not among the precisions"
        for check in checks:
            if check.precision != precision:
                yield f"{what} in {precision} has a check in {check.precision}"
            if check.subject not in subjects:
                yield f"{what} is of subject {check.subject}, which is not among the subjects"


def _objective(record: ShardedRecord) -> Iterator[str]:
    """What was run is under the objective that the record states, and over its frozen policy or one that is cached."""
    if not record.objective:
        return
    name, reference = record.objective.get("name"), record.objective.get("reference")
    if record.cases and name not in {case.objective for case in record.cases}:
        yield f"the objective is {name}, but no case is under it"
    for scenario in record.scenarios:
        if scenario.reference not in ({reference} if reference is None else {reference, "cached"}):
            of_run = reference or "no frozen policy"
            yield f"scenario {scenario.name} is over {scenario.reference}, the run over {of_run}"


def _gaps(record: ShardedRecord) -> Iterator[str]:
    """A run puts every subject to every scenario in every precision, if only to say that it does not apply."""
    found = Counter((each.precision, each.scenario, each.subject) for each in record.parity)
    grid = Counter(
        product(
            (precision.name for precision in record.precisions),
            (scenario.name for scenario in record.scenarios),
            (subject.name for subject in record.subjects),
        )
    )
    for place in found | grid:
        if found[place] != grid[place]:
            precision, scenario, subject = place
            yield (
                f"the record holds {found[place]} results of {subject} in {scenario}, {precision}, where its "
                f"precisions, scenarios and subjects ask for {grid[place]}"
            )
            return
    names: dict[str, set[str]] = {}
    for check in record.checks:
        names.setdefault(check.precision, set()).add(check.check)
    for name, of_precision in names.items():
        if missing := sorted(set().union(*names.values()) - of_precision):
            yield f"check {missing[0]} was run, but not in {name}"


def _ranks(record: ShardedRecord) -> Iterator[str]:
    num_groups = {case.name: len(case.groups) for case in record.cases}
    scenarios = {scenario.name: scenario for scenario in record.scenarios}
    for result in record.parity:
        if result.verdict == "NOT_APPLICABLE":
            continue
        where = f"{result.subject} in {result.scenario}, {result.precision}"
        yield from (
            f"{where}: {what} of {len(of_ranks)} ranks, where there are {record.world_size}"
            for what, of_ranks in (("groups", result.groups_of_ranks), ("dummies", result.dummies_of_ranks))
            if len(of_ranks) != record.world_size
        )
        scenario = scenarios.get(result.scenario)
        if scenario is not None and result.verdict == "PASS":
            yield from _dealt(where, result, num_groups.get(scenario.case, 0), scenario.micro_size)


def _dealt(where: str, result: ParityRecord, num_groups: int, micro_size: int) -> Iterator[str]:
    if sum(result.groups_of_ranks) != num_groups:
        yield f"{where} is PASS with {sum(result.groups_of_ranks)} groups on all ranks, and the case has {num_groups}"
    if not 0 < result.micro_size <= micro_size:
        yield f"{where} ran micro-batches of {result.micro_size} groups, the scenario has at most {micro_size}"


def _folded(record: ShardedRecord) -> VerdictName:
    """The verdict of the run, from its parts."""
    verdicts: set[VerdictName] = {each.verdict for each in record.parity} | {each.verdict for each in record.checks}
    survived = any(not each.caught_by for each in record.planted) or any(each.flagged_by for each in record.harmless)
    if survived or not record.checks or verdicts <= {"NOT_APPLICABLE"}:
        verdicts.add("INCONCLUSIVE")
    return next((verdict for verdict in NOT_A_PASS if verdict in verdicts), "PASS")

"""Exact checks as a table of checks and what came of them, in the words that all renderings share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.record import Record
from reports.record_names import NOT_A_PASS, VERDICTS, DtypeName, VerdictName
from reports.record_results import ExactCheckRecord, SubjectSummary
from reports.words import NO_REASON, count, plural

_ALL = "every subject in every dtype"


@dataclass(frozen=True, slots=True)
class ExactRow:
    """What came of one check, of all subjects of which the same came.

    Args:
        check: Name of the check.
        cases: Its cases by verdict, e.g. "18 PASS, 1 FAIL".
        subjects: The subjects with their dtypes, in words.
    """

    check: str
    cases: str
    subjects: str


@dataclass(frozen=True, slots=True)
class ExactGroup:
    """The cases of one check of one subject.

    Args:
        check: Name of the check.
        subject: Name of the subject.
        dtype: Dtype.
        cases: Its records, worst verdict first.
    """

    check: str
    subject: str
    dtype: DtypeName
    cases: tuple[ExactCheckRecord, ...]

    @property
    def verdict(self) -> VerdictName:
        """The worst verdict; PASS if any case passed and none did not, NOT_APPLICABLE if none took it."""
        verdicts = {case.verdict for case in self.cases}
        order: tuple[VerdictName, ...] = (*NOT_A_PASS, "PASS", "NOT_APPLICABLE")
        return next(verdict for verdict in order if verdict in verdicts)

    @property
    def is_red(self) -> bool:
        """Whether something is wrong with it."""
        return self.verdict in NOT_A_PASS

    @property
    def finding(self) -> str:
        """The reason of the worst case, and the other cases that share its verdict."""
        bad = [case for case in self.cases if case.verdict == self.verdict]
        others = f"; also in {plural(len(bad) - 1, 'other case')}" if len(bad) > 1 else ""
        return f"case {bad[0].case}: {bad[0].reason or NO_REASON}{others}"


def exact_groups(record: Record) -> tuple[ExactGroup, ...]:
    """All exact checks, the cases of one check of one subject in one dtype together."""
    groups: dict[tuple[str, str, DtypeName], list[ExactCheckRecord]] = {}
    for check in record.exact_checks:
        groups.setdefault((check.check, check.subject, check.dtype), []).append(check)
    order = (*NOT_A_PASS, "PASS", "NOT_APPLICABLE")
    return tuple(
        ExactGroup(*key, cases=tuple(sorted(cases, key=lambda case: order.index(case.verdict))))
        for key, cases in groups.items()
    )


def exact_reason(check: str, case: str, verdict: VerdictName, reason: str) -> str:
    """How a summary says that an exact check is not a PASS."""
    return f"exact check {check} on case {case} is {verdict}: {reason}"


def inexact_reasons(record: Record, summary: SubjectSummary) -> list[str]:
    """The reasons of a summary but those that repeat an exact check, which is shown in its own group.

    Args:
        record: The record.
        summary: One of its summaries.

    Returns:
        Reasons in their order; none where only exact checks failed.
    """
    of_checks = {
        exact_reason(check.check, check.case, check.verdict, check.reason)
        for check in record.exact_checks
        if (check.subject, check.dtype) == (summary.subject, summary.dtype)
    }
    return [reason for reason in summary.reasons if reason not in of_checks]


def exact_rows(record: Record) -> tuple[ExactRow, ...]:
    """One row for each check and each distinct count of cases by verdict: as short as the run is uniform."""
    counts: dict[str, dict[tuple[str, DtypeName], Counter[VerdictName]]] = {}
    for check in record.exact_checks:
        of_check = counts.setdefault(check.check, {})
        of_check.setdefault((check.subject, check.dtype), Counter())[check.verdict] += 1
    everyone = {who for of_check in counts.values() for who in of_check}
    rows = []
    for name, of_check in counts.items():
        alike: dict[str, dict[str, list[DtypeName]]] = {}
        for (subject, dtype), by_verdict in of_check.items():
            alike.setdefault(_cases(by_verdict), {}).setdefault(subject, []).append(dtype)
        is_all = len(alike) == 1 and of_check.keys() == everyone
        rows += [ExactRow(name, cases, _ALL if is_all else _named(subjects)) for cases, subjects in alike.items()]
    return tuple(rows)


def _cases(by_verdict: Counter[VerdictName]) -> str:
    """The cases of a check by verdict, e.g. "19 PASS" or "18 PASS, 1 FAIL"."""
    return ", ".join(f"{count(by_verdict[verdict])} {verdict}" for verdict in VERDICTS if by_verdict[verdict])


def _named(subjects: Mapping[str, Sequence[DtypeName]]) -> str:
    """Subjects with their dtypes, those that share them together: "one, two (float32, float64); three (float64)"."""
    alike: dict[tuple[DtypeName, ...], list[str]] = {}
    for subject, dtypes in subjects.items():
        alike.setdefault(tuple(dtypes), []).append(subject)
    return "; ".join(f"{', '.join(names)} ({', '.join(dtypes)})" for dtypes, names in alike.items())


def exact_line(record: Record) -> str:
    """All exact checks in one phrase, e.g. "exact checks: 96 of 96 passed, 8 not applicable"; "" without any."""
    if not record.exact_checks:
        return ""
    counts = Counter(check.verdict for check in record.exact_checks)
    judged = len(record.exact_checks) - counts["NOT_APPLICABLE"]
    left_out = f", {count(counts['NOT_APPLICABLE'])} not applicable" if counts["NOT_APPLICABLE"] else ""
    values = sum(check.num_compared for check in record.exact_checks)
    return f"exact checks: {count(counts['PASS'])} of {count(judged)} passed on {plural(values, 'value')}{left_out}"

"""Exact checks as a table of subjects and checks, in the words that all renderings share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from reports.record import NOT_A_PASS, VERDICTS, DtypeName, ExactCheckRecord, Record, SubjectSummary, VerdictName
from reports.words import NO_REASON, NONE, count, plural


@dataclass(frozen=True, slots=True)
class ExactRow:
    """One subject in one dtype.

    Args:
        subject: Name.
        dtype: Dtype.
        counts: Check to the number of its cases by verdict.
    """

    subject: str
    dtype: DtypeName
    counts: Mapping[str, Counter[VerdictName]]


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


def exact_names(record: Record) -> tuple[str, ...]:
    """The checks in the order in which they were met."""
    return tuple(dict.fromkeys(check.check for check in record.exact_checks))


def exact_rows(record: Record) -> tuple[ExactRow, ...]:
    """One row for each subject and dtype."""
    rows: dict[tuple[str, DtypeName], dict[str, Counter[VerdictName]]] = {}
    for check in record.exact_checks:
        rows.setdefault((check.subject, check.dtype), {}).setdefault(check.check, Counter())[check.verdict] += 1
    return tuple(ExactRow(*key, counts=counts) for key, counts in rows.items())


def exact_cell(row: ExactRow, check: str) -> str:
    """The cases of a check by verdict, e.g. "19 PASS" or "18 PASS, 1 FAIL"."""
    counts = row.counts.get(check, Counter[VerdictName]())
    return ", ".join(f"{count(counts[verdict])} {verdict}" for verdict in VERDICTS if counts[verdict]) or NONE


def exact_line(record: Record) -> str:
    """All exact checks in one phrase, e.g. "exact checks: 96 of 96 passed, 8 not applicable"; "" without any."""
    if not record.exact_checks:
        return ""
    counts = Counter(check.verdict for check in record.exact_checks)
    judged = len(record.exact_checks) - counts["NOT_APPLICABLE"]
    left_out = f", {count(counts['NOT_APPLICABLE'])} not applicable" if counts["NOT_APPLICABLE"] else ""
    values = sum(check.num_compared for check in record.exact_checks)
    return f"exact checks: {count(counts['PASS'])} of {count(judged)} passed on {plural(values, 'value')}{left_out}"

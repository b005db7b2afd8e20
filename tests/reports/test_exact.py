from __future__ import annotations

from reports.exact import ExactRow, exact_groups, exact_line, exact_rows
from reports.record import Record
from reports.record_results import ExactCheckRecord


def test_the_table_counts_the_cases_of_each_check_by_verdict(record: Record) -> None:
    rows = exact_rows(record)
    assert {(row.check, row.cases) for row in rows} == {
        ("branch-isolation", "1 PASS, 2 FAIL"), ("branch-isolation", "3 PASS"),
        ("causality", "2 PASS, 1 NOT_APPLICABLE"), ("causality", "3 PASS"),
    }  # fmt: skip
    (mine,) = (row for row in rows if "FAIL" in row.cases)
    assert mine.subjects.startswith("mine")
    assert mine.subjects.endswith(" (float32)")
    (partly,) = (row for row in rows if "NOT_APPLICABLE" in row.cases)
    assert partly.subjects == "packed-eager (float32)"


def test_subjects_and_dtypes_of_which_the_same_came_are_one_row(passing_record: Record) -> None:
    def check(name: str, subject: str, dtype: str, num_cases: int = 2) -> list[ExactCheckRecord]:
        each = {
            "check": name,
            "subject": subject,
            "verdict": "PASS",
            "reason": "",
            "num_compared": 1,
            "num_differing": 0,
        }
        return [ExactCheckRecord.model_validate({**each, "dtype": dtype, "case": f"c{i}"}) for i in range(num_cases)]

    everyone = [(subject, dtype) for subject in ("a", "b", "c") for dtype in ("float64", "float32")]
    checks = [each for who in everyone for each in check("causality", *who)]
    checks += [
        each for who in everyone for each in check("repeat", *who, num_cases=1 if who == ("c", "float32") else 2)
    ]
    checks += check("reach", "a", "float64")
    assert exact_rows(passing_record.model_copy(update={"exact_checks": checks})) == (
        ExactRow("causality", "2 PASS", "every subject in every dtype"),
        ExactRow("repeat", "2 PASS", "a, b (float64, float32); c (float64)"),
        ExactRow("repeat", "1 PASS", "c (float32)"),
        ExactRow("reach", "2 PASS", "a (float64)"),
    )


def test_each_subject_is_in_one_row_of_each_of_its_checks(record: Record) -> None:
    rows = exact_rows(record)
    for check in record.exact_checks:
        named = [row.cases for row in rows if row.check == check.check and check.subject in row.subjects]
        assert len(named) == 1
        assert check.verdict in named[0]


def test_every_record_is_in_one_group_and_the_worst_verdict_counts(record: Record) -> None:
    groups = exact_groups(record)
    assert sum(len(group.cases) for group in groups) == len(record.exact_checks)
    (red,) = (group for group in groups if group.is_red)
    assert (red.check, red.verdict) == ("branch-isolation", "FAIL")
    assert red.finding == "case two-groups: group 0, rejected, token 4 moved by 1.5e-3; also in 1 other case"
    assert {group.verdict for group in groups} == {"PASS", "FAIL"}


def test_the_line_leaves_out_what_was_not_applicable(record: Record, passing_record: Record) -> None:
    assert exact_line(record) == "exact checks: 15 of 17 passed on 510 values, 1 not applicable"
    assert exact_line(passing_record.model_copy(update={"exact_checks": []})) == ""

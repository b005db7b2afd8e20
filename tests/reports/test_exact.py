from __future__ import annotations

from reports.exact import exact_cell, exact_groups, exact_line, exact_names, exact_rows
from reports.record import Record


def test_the_table_counts_the_cases_of_each_check_by_verdict(record: Record) -> None:
    names, rows = exact_names(record), {row.subject: row for row in exact_rows(record)}
    assert set(names) == {"branch-isolation", "causality"}
    mine = next(row for subject, row in rows.items() if subject.startswith("mine"))
    assert exact_cell(mine, "branch-isolation") == "1 PASS, 2 FAIL"
    assert exact_cell(rows["packed-eager"], "causality") == "2 PASS, 1 NOT_APPLICABLE"
    assert exact_cell(rows["packed-eager"], "no-such-check") == "-"


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

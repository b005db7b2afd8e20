"""Two results side by side: what changed is named, what did not is not, and different things are not compared."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reports import difference_markdown
from reports.difference import Change, RatioPair, closing_line, compare, named
from reports.difference_terminal import print_difference
from reports.record import Record
from reports.results import print_result, read_result, write_result
from reports.store import RecordError, write_record


def changed(record: Record, **changes: Any) -> Record:
    return record.model_copy(update=changes)


def test_a_result_does_not_differ_from_itself(record: Record) -> None:
    difference = compare(record, record)
    assert (difference.settings, difference.verdicts, difference.moved) == ((), (), ())
    assert difference.num_verdicts > len(record.results)
    assert len(difference.ratios) > 10
    assert closing_line(difference).startswith(f"0 verdicts of {difference.num_verdicts} changed, 0 ratios")


def test_what_changed_is_named_with_both_values(passing_record: Record) -> None:
    environment = passing_record.environment.model_copy(update={"packages": {"torch": "9.9", "peft": "0.21.0"}})
    (first, *rest), (summary, *summaries) = passing_record.results, passing_record.summaries
    failed = first.model_copy(update={"verdict": "FAIL"})
    other = changed(
        passing_record,
        environment=environment,
        verdict="FAIL",
        results=[failed, *rest],
        summaries=[summary.model_copy(update={"verdict": "FAIL"}), *summaries],
        policy={**passing_record.policy, "rationale": "in other words"},
    )
    difference = compare(passing_record, other)
    assert set(difference.settings) == {
        Change("environment.packages.torch", "2.13.0", "9.9"),
        Change("environment.packages.transformers", "5.24.0", "-"),
    }
    assert set(difference.verdicts) == {
        Change("the run", "PASS", "FAIL"),
        Change(f"{first.subject}, {first.dtype}", "PASS", "FAIL"),
        Change(f"{first.subject}, {first.dtype}, case {first.case}", "PASS", "FAIL"),
    }
    assert difference.moved == ()


def test_a_subject_that_only_one_of_them_has_is_one_line(passing_record: Record) -> None:
    gone = passing_record.results[0].subject
    parts = ("results", "summaries", "exact_checks")
    without = changed(
        passing_record, **{part: [p for p in getattr(passing_record, part) if p.subject != gone] for part in parts}
    )
    difference = compare(passing_record, without)
    rows = [what for what, _, _ in named(difference.verdicts) if what.startswith(gone)]
    dtypes = [summary.dtype for summary in passing_record.summaries if summary.subject == gone]
    assert len(difference.verdicts) > 4 * len(dtypes)
    assert len(rows) == len(dtypes)
    for row, dtype in zip(sorted(rows), sorted(dtypes), strict=True):
        number = sum(change.what.startswith(f"{gone}, {dtype}, ") for change in difference.verdicts)
        assert row == f"{gone}, {dtype}, with {number} verdicts of its own"
    assert named((Change(f"{gone}, float32, case x", "PASS", "-"),)) == [(f"{gone}, float32, case x", "PASS", "-")]


def test_what_only_one_of_them_has_has_changed(passing_record: Record) -> None:
    fewer = changed(passing_record, results=passing_record.results[1:])
    missing = passing_record.results[0]
    assert compare(passing_record, fewer).verdicts == (
        Change(f"{missing.subject}, {missing.dtype}, case {missing.case}", missing.verdict, "-"),
    )


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (0.3, 0.3, False),
        (0.3, 0.59, False),
        (0.59, 0.3, False),
        (0.3, 0.6, True),
        (0.6, 0.3, True),
        (0.0, 0.0, False),
        (0.0, 1e-9, True),
        (math.inf, math.inf, False),
        (1.0, math.inf, True),
        (math.nan, math.nan, False),
        (1.0, math.nan, True),
        (None, 1.0, True),
        (1.0, None, True),
        (None, None, False),
    ],
)
def test_a_ratio_has_moved_if_it_changed_by_a_factor_of_two(
    before: float | None, after: float | None, moved: bool
) -> None:
    assert RatioPair("x", before, after).moved is moved


def test_ratios_stand_side_by_side(passing_record: Record) -> None:
    first, *rest = passing_record.results
    judgements = [j.model_copy(update={"measured": 10 * (j.measured or 0.0)}) for j in first.judgements]
    other = changed(passing_record, results=[first.model_copy(update={"judgements": judgements}), *rest])
    difference = compare(passing_record, other)
    assert all(pair.what.startswith(f"{first.subject}, {first.dtype}: ") for pair in difference.moved)
    assert all(pair.before is not None and pair.after is not None for pair in difference.moved)
    assert difference.moved


def test_both_renderings_show_every_change_and_escape_names(passing_record: Record) -> None:
    hostile = "<script> | `x` \x1b[31m"
    objective = {**passing_record.objective, "beta": 0.7, hostile: hostile}
    difference = compare(passing_record, changed(passing_record, objective=objective))
    stream = io.StringIO()
    print_difference(difference, Console(file=stream, width=80))
    markdown, terminal = difference_markdown.render(difference), stream.getvalue()
    for text in (markdown, terminal):
        assert "objective.beta" in text
        assert "0.7" in text
        assert closing_line(difference).split(",")[0] in " ".join(text.split())
        assert "\x1b" not in text
    assert "<script>" not in markdown
    assert all(len(line) <= 80 for line in terminal.splitlines())


def test_a_result_is_read_shown_and_written_whatever_its_kind(passing_record: Record, tmp_path: Path) -> None:
    source = write_record(passing_record, tmp_path / "old")
    for path in (source, source.parent):
        assert read_result(path) == passing_record
    stream = io.StringIO()
    print_result(passing_record, Console(file=stream, width=100))
    assert "PASS" in stream.getvalue()
    assert write_result(passing_record, tmp_path / "new")[-1].read_bytes() == source.read_bytes()


def test_a_folder_without_a_result_or_with_two_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds none of .*record\.json, kill-matrix\.json, .*: name the file"):
        read_result(tmp_path)
    for name in ("record.json", "kill-matrix.json"):
        (tmp_path / name).write_text('{"kind": "poem"}', encoding="utf-8")
    with pytest.raises(RecordError, match=r"holds record\.json and kill-matrix\.json: name the file"):
        read_result(tmp_path)
    with pytest.raises(RecordError, match=r"record\.json: a 'poem'; give a record of packparity check, a kill"):
        read_result(tmp_path / "record.json")
    with pytest.raises(RecordError, match=r"absent\.json"):
        read_result(tmp_path / "absent.json")

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest

from reports.overview import (
    closing_line,
    needs_attention,
    not_applicable,
    not_judged,
    own_reasons,
    policy_rows,
    ratio,
    summary_rows,
)
from reports.record import Record, ResultRecord


@pytest.mark.parametrize(
    ("measured", "budget", "expected"),
    [
        (1.0, 4.0, 0.25), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0), (1e-30, 0.0, math.inf), (math.nan, 1.0, math.nan),
        (math.nan, 0.0, math.nan), (1.0, math.nan, math.nan), (math.inf, 1.0, math.inf), (math.inf, math.inf, math.nan),
        (None, 1.0, None), (1.0, None, None),
    ],
)  # fmt: skip
def test_ratio(record: Record, measured: float | None, budget: float | None, expected: float | None) -> None:
    judgement = record.results[0].judgements[0].model_copy(update={"measured": measured, "budget": budget})
    assert ratio(judgement) == pytest.approx(expected, nan_ok=True)


def test_nan_is_the_worst_of_its_quantity(record: Record) -> None:
    row = next(row for row in summary_rows(record) if row.summary.verdict == "ERROR")
    logps = row.worst[0]
    assert logps is not None
    assert math.isnan(logps.value)
    assert logps.case == "one-token-prompt"


def test_the_worst_ratio_is_that_of_a_plain_search(passing_record: Record) -> None:
    for row in summary_rows(passing_record):
        own = [
            (j.measured / j.budget, j.quantity)
            for r in passing_record.results
            if r.subject == row.summary.subject and r.dtype == row.summary.dtype
            for j in r.judgements
            if j.measured is not None and j.budget is not None
        ]
        assert row.worst[3] is not None
        assert row.worst[2] is not None
        assert row.worst[3].value == max(value for value, quantity in own if quantity == "gradients")
        assert row.worst[2].value == max(value for value, quantity in own if quantity in ("loss", "rewards", "margins"))


def test_a_quantity_that_was_not_measured_has_no_ratio(passing_record: Record) -> None:
    results = [
        r.model_copy(update={"judgements": [j for j in r.judgements if j.quantity != "gradients"]})
        for r in passing_record.results
    ]
    rows = summary_rows(passing_record.model_copy(update={"results": results}))
    assert all(row.worst[3] is None for row in rows)


def test_what_needs_attention_comes_worst_first(record: Record, passing_record: Record) -> None:
    assert [result.verdict for result in needs_attention(record)] == ["ERROR", "FAIL", "INCONCLUSIVE"]
    assert needs_attention(passing_record) == ()


def test_what_was_left_out_is_said_once_with_its_reason(passing_record: Record) -> None:
    whole, part = not_applicable(passing_record)
    assert (whole.subject, whole.what, whole.cases) == ("packed-eager", "the whole case", ("group-3-2",))
    assert whole.dtypes == ("float64", "float32", "bfloat16")
    assert (part.subject, part.what, part.cases) == ("packed-split", "gradients", ("length-128",))
    assert part.reason == "FlexAttention has no backward on a CPU"


def test_the_closing_line_gives_values_and_headroom(passing_record: Record, record: Record) -> None:
    line = closing_line(passing_record)
    assert line.startswith("16,224 values compared in 48 results; worst measured / budget 0.600")
    assert "headroom 1.67x" in line
    assert "NaN: no headroom" in closing_line(record)


def left_out(result: ResultRecord, *quantities: str) -> ResultRecord:
    """The result with these quantities not applicable; all of it without any."""
    if not quantities:
        return result.model_copy(update={"verdict": "NOT_APPLICABLE", "judgements": [], "reasons": ["no"]})
    judgements = [
        j.model_copy(
            update={"verdict": "NOT_APPLICABLE", "reason": f"no {j.quantity}"} if j.quantity in quantities else {}
        )
        for j in result.judgements
    ]
    return result.model_copy(update={"judgements": judgements})


def judged_on(record: Record, gaps: Mapping[tuple[str, str, str], Sequence[str]]) -> Record:
    """Subjects "a", "b", "c" in two dtypes on three cases; the gaps by subject, dtype ("" for all) and case."""
    good = next(result for result in record.results if result.verdict == "PASS" and result.case == "two-groups")
    results = []
    for subject, dtype, case in itertools.product("abc", ("float64", "float32"), ("one", "two", "three")):
        result = good.model_copy(update={"subject": subject, "dtype": dtype, "case": case})
        for key in ((subject, dtype, case), (subject, "", case)):
            result = left_out(result, *gaps[key]) if key in gaps else result
        results.append(result)
    return record.model_copy(update={"results": results})


def test_a_run_in_which_all_was_judged_names_no_gap(record: Record) -> None:
    assert not_judged(judged_on(record, {})) == ()
    assert "NOT judged" not in closing_line(judged_on(record, {}))


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ({("a", "", "one"): ()}, ("a in 1 of 3 cases",)),
        ({("a", "float32", "one"): ()}, ("a in 1 of 3 cases (float32)",)),
        ({("a", "", "one"): (), ("b", "", "two"): ()}, ("a and b in 1 of 3 cases",)),
        ({("a", "", "one"): (), ("b", "float64", "two"): ()}, ("a in 1 of 3 cases", "b in 1 of 3 cases (float64)")),
        ({("c", "", case): () for case in ("one", "two", "three")}, ("c in all 3 cases",)),
        (
            {("a", "", "one"): (), ("b", "", "one"): ("gradients",), ("b", "", "two"): ("gradients",)},
            ("gradients of b in 2 of 3 cases", "a in 1 of 3 cases"),
        ),
        (
            {("a", "", "one"): ("gradients",), ("a", "float32", "two"): ("gradients",)},
            ("gradients of a in 1 of 3 cases (float64)", "gradients of a in 2 of 3 cases (float32)"),
        ),
        (
            {(subject, "", "one"): ("loss",) for subject in "abc"},
            ("loss of a, b and c in 1 of 3 cases",),
        ),
    ],
)  # fmt: skip
def test_every_gap_is_named_once_and_subjects_with_the_same_gap_together(
    record: Record, gaps: Mapping[tuple[str, str, str], Sequence[str]], expected: tuple[str, ...]
) -> None:
    run = judged_on(record, gaps)
    assert not_judged(run) == expected
    assert closing_line(run).endswith(f"; NOT judged: {', '.join(expected)}")


def test_the_closing_line_of_a_failing_run_does_not_speak_of_headroom(record: Record) -> None:
    results = [r for r in record.results if r.verdict in ("PASS", "FAIL")]
    line = closing_line(record.model_copy(update={"results": results}))
    assert "over budget" in line
    assert "headroom" not in line


def test_the_closing_line_of_an_empty_run_says_so(record: Record) -> None:
    empty = record.model_copy(update={"results": [], "num_compared": 0})
    assert not_judged(empty) == ()
    assert closing_line(empty) == "0 values compared in 0 results; nothing was measured against a budget"


def test_every_number_and_rationale_of_the_policy_has_its_row(record: Record) -> None:
    rows = {row.name: row for row in policy_rows(record.policy)}
    assert list(rows) == ["policy", "oracle", "oracle / floors", "differential"]
    assert rows["oracle"].values == "factor 2.0"
    assert rows["oracle"].rationale.startswith("honest runs stayed below 1.14")
    assert rows["oracle / floors"].values == "float32 1.2e-07, float64 2.2e-16"


def test_a_policy_may_list_its_entries() -> None:
    rows = policy_rows({"rules": [{"dtype": "float32", "factor": 2.0, "rationale": "measured"}, {"dtype": "float64"}]})
    assert [(row.name, row.values, row.rationale) for row in rows] == [
        ("rules 1", "dtype float32, factor 2.0", "measured"),
        ("rules 2", "dtype float64", ""),
    ]


def test_a_reason_that_a_judgement_gives_is_not_said_twice(record: Record) -> None:
    result = next(result for result in record.results if result.verdict == "FAIL")
    reason = result.judgements[0].reason
    assert own_reasons(result.model_copy(update={"reasons": ["the case is odd", reason]})) == ["the case is odd"]

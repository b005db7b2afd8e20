from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import pytest
from rich.console import Console

from reports import html, junit, markdown, terminal
from reports.overview import (
    closing_line,
    finding,
    needs_attention,
    not_applicable,
    not_judged,
    own_reasons,
    policy_rows,
    ratio,
    run_reasons,
    summary_rows,
)
from reports.record import Record
from reports.record_results import JudgementRecord, PlaceRecord, ResultRecord


def printed(record: Record) -> str:
    stream = io.StringIO()
    terminal.print_record(record, Console(file=stream, width=250))
    return stream.getvalue()


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
        ({("c", "", case): () for case in ("one", "two", "three")}, ("c in all cases",)),
        (
            {("a", "", "one"): (), ("b", "", "one"): ("gradients",), ("b", "", "two"): ("gradients",)},
            ("gradients of b in 2 of 3 cases", "a in 1 of 3 cases"),
        ),
        (
            {("a", "", "one"): ("gradients",), ("a", "float32", "two"): ("gradients",)},
            ("gradients of a in 1 of 3 cases (float64)", "gradients of a in 2 of 3 cases (float32)"),
        ),
        (
            {("a", "", "one"): (), **{("a", "", case): ("gradients",) for case in ("two", "three")}},
            ("gradients of a in all cases", "a in 1 of 3 cases"),
        ),
        (
            {("a", "", "one"): (), ("a", "float32", "two"): (), ("c", "float64", "two"): (),
             ("c", "float64", "three"): (),
             **{("b", "", case): () for case in ("one", "two", "three")}},
            ("3 subjects in some cases, for the reasons given",),
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


def a_failure(record: Record, **changes: object) -> JudgementRecord:
    place = PlaceRecord(where="group 0, rejected, token 8", actual=-8.75, expected=-7.125, measured=1.625, budget=2e-5)
    content = record.results[0].judgements[0].model_dump() | {
        "verdict": "FAIL", "measured": 1.625, "budget": 2e-5, "worst": [place],
        "reason": "per_token_logps: max distance to the oracle 1.62, budget 2e-05; worst at group 0, rejected, token 8",
    }  # fmt: skip
    return JudgementRecord.model_validate(content | changes)


def test_a_finding_says_each_fact_once(record: Record) -> None:
    assert finding(a_failure(record)) == (
        "log-probs, to the oracle, max: 1.62 against a budget of 2.00e-5 nats, 8.12e4x; "
        "worst at group 0, rejected, token 8: actual -8.75, expected -7.125"
    )


def test_a_finding_on_gradients_says_in_how_many_tensors(record: Record) -> None:
    reason = "0.5 over the budget of 0.001 (3 of 28 LoRA tensors)"
    failure = a_failure(record, quantity="gradients", unit="relative", reason=reason)
    before, _, after = finding(failure).partition(" in 3 of 28 LoRA tensors; ")
    assert before.startswith("gradients, ")
    assert after.startswith("worst at ")
    assert "over the budget" not in finding(failure)


def test_a_finding_names_one_place_for_nan(record: Record) -> None:
    place = PlaceRecord(where="group 0, token 2", actual=math.nan, expected=-1.5, measured=math.nan, budget=2e-5)
    reason = "per_token_logps: nan at group 0, token 1 (expected -6.6)"
    text = finding(a_failure(record, measured=math.nan, reason=reason, worst=[place]))
    assert text == (
        "log-probs, to the oracle, max: NaN against a budget of 2.00e-5 nats; "
        "worst at group 0, token 2: actual NaN, expected -1.5"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Nothing but the reason says what is wrong.
        ({"verdict": "INCONCLUSIVE", "budget": math.inf, "worst": []}, "1.62 nats, without a finite budget; no budget"),
        ({"verdict": "INCONCLUSIVE", "budget": 3.0, "worst": []}, "1.62 against a budget of 3.00 nats; no budget"),
        ({"budget": 3.0, "worst": []}, "1.62 against a budget of 3.00 nats; no budget"),
        ({"worst": []}, "1.62 against a budget of 2.00e-5 nats, 8.12e4x; no budget"),
        ({"measured": None, "budget": None, "worst": []}, "- nats, without a finite budget; no budget"),
        ({"budget": 0.0, "worst": [], "reason": ""}, "1.62 against a budget of 0 nats"),
    ],
)
def test_a_finding_gives_the_reason_where_the_numbers_do_not(
    record: Record, changes: dict[str, object], expected: str
) -> None:
    text = finding(a_failure(record, **{"reason": "no budget"} | changes))
    assert text == f"log-probs, to the oracle, max: {expected}"


@pytest.mark.parametrize("render", [junit.render, markdown.render, html.render, printed])
def test_no_rendering_says_a_failure_twice(record: Record, render: Callable[[Record], str]) -> None:
    failed = next(result for result in record.results if result.verdict == "FAIL")
    judgement = a_failure(record)
    result = failed.model_copy(update={"judgements": [judgement], "reasons": [judgement.reason]})
    summary = next(s for s in record.summaries if s.dtype == failed.dtype and s.subject == failed.subject)
    text = render(
        record.model_copy(
            update={
                "results": [result], "summaries": [summary.model_copy(update={"reasons": []})], "verdict": "FAIL",
                "reasons": [f"mine in float32: case long-prompt is FAIL: {judgement.reason}"],
            }
        )
    )  # fmt: skip
    # A page also lists, folded away, every place of every judgement.
    assert text.count("group 0, rejected, token 8") == (2 if render is html.render else 1)
    assert "max distance to the oracle" not in text
    assert "8.12e4x" in text


def test_the_reasons_of_a_run_stand_where_nothing_else_shows_its_verdict(record: Record) -> None:
    told = record.model_copy(update={"reasons": ["why"]})
    alone = told.model_copy(update={"results": [], "summaries": []})
    assert run_reasons(told) == []
    assert run_reasons(alone) == ["why"]
    assert run_reasons(told.model_copy(update={"verdict": "NOT_APPLICABLE", "results": []})) == ["why"]


def test_a_reason_that_a_judgement_gives_is_not_said_twice(record: Record) -> None:
    result = next(result for result in record.results if result.verdict == "FAIL")
    reason = result.judgements[0].reason
    assert own_reasons(result.model_copy(update={"reasons": ["the case is odd", reason]})) == ["the case is odd"]

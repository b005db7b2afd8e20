from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from reports.record import Record
from reports.record_results import JudgementRecord, PlaceRecord, ResultRecord, SubjectSummary

Content = dict[str, Any]


def refused(model: type, content: Content, match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        model.model_validate(content)  # type: ignore[attr-defined]


def changed(record: Record, change: Callable[[Content], object]) -> Content:
    content = record.model_dump()
    change(content)
    return content


def test_the_unchanged_content_is_accepted(record: Record, passing_record: Record) -> None:
    for each in (record, passing_record):
        assert Record.model_validate(each.model_dump()).verdict == each.verdict


def test_a_run_that_compared_nothing_cannot_pass(passing_record: Record) -> None:
    empty = {"results": [], "summaries": [], "counts": {}, "num_compared": 0}
    refused(Record, passing_record.model_dump() | empty, "the run is PASS, but nothing was compared")


def test_a_run_of_which_nothing_was_applicable_cannot_pass(passing_record: Record) -> None:
    content = passing_record.model_dump()
    left_out = [r for r in content["results"] if r["verdict"] == "NOT_APPLICABLE"]
    content |= {"results": left_out, "summaries": [], "counts": {"NOT_APPLICABLE": len(left_out)}, "num_compared": 0}
    refused(Record, content, "nothing was compared")


@pytest.mark.parametrize("verdict", ["FAIL", "ERROR", "INCONCLUSIVE"])
def test_a_run_cannot_pass_beside_a_result_that_did_not(record: Record, verdict: str) -> None:
    content = record.model_dump() | {"verdict": "PASS"}
    content["results"] = [r for r in content["results"] if r["verdict"] in ("PASS", verdict)]
    content["counts"] = {"PASS": len(content["results"]) - 1, verdict: 1}
    content["num_compared"] = sum(r["num_compared"] for r in content["results"])
    content["summaries"] = []
    refused(Record, content, f"the run is PASS, but has 1 result with verdict {verdict}")


def test_a_run_cannot_pass_beside_a_subject_whose_packed_path_did_not_run(passing_record: Record) -> None:
    def change(content: Content) -> None:
        content["summaries"][0] |= {"verdict": "INCONCLUSIVE", "reasons": ["fed as many slots as pairwise"]}

    refused(Record, changed(passing_record, change), "has 1 summary with verdict INCONCLUSIVE")


def test_counts_must_be_those_of_the_results(record: Record) -> None:
    content = record.model_dump()
    content["counts"]["FAIL"] = 0
    refused(Record, content, "counts say 0 FAIL, but the results hold 1")


def test_cases_of_a_subject_must_be_those_of_its_results(record: Record) -> None:
    def change(content: Content) -> None:
        content["summaries"][0]["cases_by_verdict"]["PASS"] += 1

    refused(Record, changed(record, change), "cases of packed-eager in float64 say 8 PASS, but the results hold 7")


def test_values_compared_must_be_those_of_the_results(record: Record) -> None:
    content = record.model_dump() | {"num_compared": record.num_compared + 1}
    refused(Record, content, f"num_compared is {record.num_compared + 1}, but the results compared")


def test_a_verdict_that_does_not_exist_cannot_be_counted(record: Record) -> None:
    refused(Record, record.model_dump() | {"counts": {"SKIPPED": 1}}, "SKIPPED")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_compared": 0}, "nothing was compared"),
        ({"measured": None}, "nothing was compared"),
        ({"budget": None}, "nothing was compared"),
        ({"measured": math.nan}, "measured nan"),
        ({"budget": math.nan}, "budget of nan"),
        ({"measured": 1.0, "budget": 0.5}, "measured 1.0 against a budget of 0.5"),
    ],
)
def test_a_judgement_cannot_pass_without_a_value_within_its_budget(
    passing_record: Record, changes: Content, match: str
) -> None:
    refused(JudgementRecord, passing_record.results[0].judgements[0].model_dump() | changes, match)


def test_a_result_cannot_pass_beside_a_judgement_that_did_not(passing_record: Record) -> None:
    content = passing_record.results[0].model_dump()
    content["judgements"][3] |= {"verdict": "FAIL", "measured": 9.0}
    refused(ResultRecord, content, "case balanced is PASS, but has 1 judgement with verdict FAIL")


def test_a_result_cannot_pass_without_a_judgement(passing_record: Record) -> None:
    content = passing_record.results[0].model_dump() | {"judgements": []}
    refused(ResultRecord, content, "case balanced is PASS, but no judgement is")


def test_a_subject_cannot_pass_where_no_case_did(passing_record: Record) -> None:
    content = passing_record.summaries[0].model_dump() | {"cases_by_verdict": {"NOT_APPLICABLE": 8}}
    refused(SubjectSummary, content, "nothing was compared")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (math.inf, r"value\.nested\[1\] is inf: a setting must be finite"),
        (object(), r"value\.nested\[1\] is of type object"),
        ("\ud800", "not valid Unicode"),
        ({3: 1}, "keys must be strings"),
    ],
)
def test_settings_that_json_would_not_give_back_are_refused(record: Record, value: object, match: str) -> None:
    refused(Record, record.model_dump() | {"policy": {"nested": [1, value]}}, match)


def test_a_tuple_in_the_settings_is_what_json_gives_back(record: Record) -> None:
    content = record.model_dump() | {"policy": {"shape": (1, 2)}}
    assert Record.model_validate(content).policy == {"shape": [1, 2]}


def test_only_the_three_words_for_numbers_that_are_not_finite_are_read() -> None:
    content = {"where": "w", "actual": "NaN", "expected": "-Infinity", "measured": 1.0, "budget": "Infinity"}
    place = PlaceRecord.model_validate(content, strict=True)
    assert math.isnan(place.actual)
    assert (place.expected, place.budget) == (-math.inf, math.inf)
    for text in ("nan", "inf", "1.0", ""):
        with pytest.raises(ValidationError):
            PlaceRecord.model_validate(content | {"actual": text}, strict=True)


@pytest.mark.parametrize("verdict", ["FAIL", "ERROR", "INCONCLUSIVE"])
def test_a_verdict_other_than_pass_is_refused_where_nothing_explains_it(passing_record: Record, verdict: str) -> None:
    content = passing_record.model_dump() | {"verdict": verdict, "reasons": []}
    refused(Record, content, f"the run is {verdict}, but no result, summary or exact check is, and no reason is given")
    refused(Record, content | {"reasons": [""]}, "no reason is given")
    summary = passing_record.summaries[0].model_dump() | {"verdict": verdict, "reasons": []}
    refused(SubjectSummary, summary, f"is {verdict}, but no case is, and no reason is given")
    result = passing_record.results[0].model_dump() | {"verdict": verdict, "reasons": []}
    refused(ResultRecord, result, f"case balanced is {verdict}, but no judgement is, and no reason is given")


def test_a_reason_alone_explains_a_verdict(passing_record: Record) -> None:
    content = passing_record.model_dump() | {"verdict": "INCONCLUSIVE", "reasons": ["planted faults survived"]}
    assert Record.model_validate(content).verdict == "INCONCLUSIVE"


def test_an_exact_check_alone_explains_a_verdict(passing_record: Record) -> None:
    def change(content: Content) -> None:
        content |= {"verdict": "FAIL", "reasons": []}
        content["exact_checks"][0] |= {"verdict": "FAIL", "reason": "a bit differs", "num_differing": 1}

    assert Record.model_validate(changed(passing_record, change)).verdict == "FAIL"

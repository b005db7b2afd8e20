"""A record in which one part was edited is refused where another part gives it away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from reports.consistency import inconsistencies, kind_of
from reports.record import Record
from reports.record_results import DecisionsRecord
from reports.record_setting import CaseRecord, GroupRecord

Content = dict[str, Any]


def drop_result(content: Content) -> None:
    """With everything that counts results put right again."""
    gone = content["results"].pop()
    content["counts"][gone["verdict"]] -= 1
    content["num_compared"] -= gone["num_compared"]
    summary = next(s for s in content["summaries"] if (s["subject"], s["dtype"]) == (gone["subject"], gone["dtype"]))
    summary["cases_by_verdict"][gone["verdict"]] -= 1


def drop_summary(content: Content) -> None:
    gone = content["summaries"].pop()
    key = (gone["subject"], gone["dtype"])
    content["results"] = [r for r in content["results"] if (r["subject"], r["dtype"]) != key]
    content["counts"] = dict(Counter(r["verdict"] for r in content["results"]))
    content["num_compared"] = sum(r["num_compared"] for r in content["results"])


def drop_subject(content: Content) -> None:
    content["subjects"].pop()


def drop_case(content: Content) -> None:
    content["cases"].pop()


def add_case(content: Content) -> None:
    content["cases"].append(content["cases"][0] | {"name": "one more"})


def turn_into_examples(content: Content) -> None:
    content["cases"][0] |= {"objective": "sft-token-mean"}


def name_another(part: str, field: str) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content[part][0][field] = ["nowhere"] if field == "cases" else "nowhere"

    return change


def note_planted(number: int) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["notes"].append(f"faults planted in this run: {number}, 1 of them with a backward pass; they add 2.1%")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_case, "a result is of case .*, which is not among the cases"),
        (add_case, "holds 0 results of .* on case one more"),
        (drop_result, "holds 0 results of packed-.* on case .*, where its subjects, dtypes and cases ask for 1"),
        (drop_summary, "holds 0 summaries of packed-.* in bfloat16"),
        (drop_subject, "a result is of subject .*, which is not among the subjects"),
        (turn_into_examples, "case .*: the objective sft-token-mean needs groups, with no negative"),
        (name_another("exact_checks", "subject"), "exact check .* is of subject nowhere"),
        (name_another("planted", "cases"), "planted fault .* is of case nowhere"),
        (note_planted(99), r"a note says that 99 faults were planted, but the record holds \d+ of them"),
        (lambda content: content["subjects"][0].update(takes=["examples"]), "which is of .*, and takes no such case"),
        (lambda content: content.update(schema_version=1), "schema_version is 1, but the record holds exact checks"),
        (lambda content: content.update(schema_version=2), "schema_version is 2, but the record holds a subject that"),
        (lambda content: content["cases"][0]["groups"][0].update(positives=[]), "no positive, or a prompt"),
        (lambda content: content["cases"][0]["groups"][0].update(prompt=0), "no positive, or a prompt"),
        (lambda content: content["cases"][0]["groups"][0].update(supervised=[1]), r"supervised \[1\] of \[.*\] tokens"),
        (lambda content: content["cases"][0]["groups"][0].update(negatives=[]), "sigmoid needs groups, with a neg"),
        (lambda content: content["cases"][0].update(groups=[]), "sigmoid needs groups, with a negative in each"),
        (lambda content: content["results"][0].update(num_compared=1), "num_compared is 1, but its judgements have"),
    ],
)  # fmt: skip
def test_an_edit_that_another_part_gives_away_is_refused(
    passing_record: Record, change: Callable[[Content], None], message: str
) -> None:
    content = passing_record.model_dump()
    change(content)
    with pytest.raises(ValidationError, match=message):
        Record.model_validate(content)


def test_a_record_as_it_is_written_has_no_inconsistency(record: Record, passing_record: Record) -> None:
    assert [*inconsistencies(record), *inconsistencies(passing_record)] == []


def test_what_rounding_hid_counts_among_the_planted_faults(passing_record: Record) -> None:
    names = {planted.fault for planted in passing_record.planted}
    content = passing_record.model_dump()
    note_planted(len(names) + 2)(content)
    with pytest.raises(ValidationError, match="a note says"):
        Record.model_validate(content)
    content["blind_spots"].append(
        {
            "what": "faults smaller than the rounding of bfloat16",
            "why": "planted and within budget: one, two",
            "faults": [],
        }
    )
    assert Record.model_validate(content).planted
    emptied = content | {"planted": []}
    with pytest.raises(ValidationError, match="but the record holds 2 of them"):
        Record.model_validate(emptied)


@pytest.mark.parametrize(
    ("version", "change", "message"),
    [
        (2, {"positives": [3, 4]}, "which is none of pairs"),
        (2, {"supervised": [1, 2]}, "which is none of pairs"),
        (3, {"objective": "ipo"}, "the objective ipo"),
        (4, {"objective": "reward-model"}, "a reward model"),
    ],
)
def test_a_version_holds_what_it_had(passing_record: Record, version: int, change: Content, message: str) -> None:
    """The record of one result, which every version could hold until something later comes in."""
    result = next(result for result in passing_record.results if result.verdict == "PASS").model_dump()
    summary = next(s for s in passing_record.summaries if (s.subject, s.dtype) == (result["subject"], result["dtype"]))
    subject = {"name": result["subject"], "layout": "packed", "owns_loss": False}
    group = {"source": "", "prompt": 3, "positives": [4], "negatives": [5]}
    case = {"name": result["case"], "why": "", "groups": [group]}
    content = passing_record.model_dump() | {
        "schema_version": version, "results": [result], "cases": [case], "subjects": [subject],
        "summaries": [summary.model_dump() | {"cases_by_verdict": {"PASS": 1}}], "counts": {"PASS": 1},
        "num_compared": result["num_compared"], "exact_checks": [], "planted": [],
    }  # fmt: skip
    assert Record.model_validate(content).schema_version == version
    content["cases"] = [case | change if "objective" in change else case | {"groups": [group | change]}]
    takes = ["pairs"] if version < 3 else ["pairs", "groups"]
    content["subjects"] = [subject | {"takes": takes}]
    content["results"] = [result | {"num_compared": 0, "verdict": "NOT_APPLICABLE", "judgements": []}]
    content["summaries"][0] |= {"cases_by_verdict": {"NOT_APPLICABLE": 1}, "verdict": "NOT_APPLICABLE"}
    content |= {"counts": {"NOT_APPLICABLE": 1}, "num_compared": 0, "verdict": "NOT_APPLICABLE"}
    with pytest.raises(ValidationError, match=f"schema_version is {version}, but the record holds .*{message}"):
        Record.model_validate(content)
    assert Record.model_validate(content | {"schema_version": 5})


def test_decisions_came_with_version_4(passing_record: Record) -> None:
    content = passing_record.model_dump() | {"schema_version": 3}
    decided = {"num_pairs": 2, "flipped": 1, "ties": 0, "halves_right": 4, "expected_halves_right": 2}
    content["results"][0]["decisions"] = decided
    with pytest.raises(ValidationError, match="schema_version is 3, but the record holds decisions"):
        Record.model_validate(content)
    for change in ({"flipped": 3}, {"ties": 3}, {"halves_right": 5}, {"expected_halves_right": 5}):
        with pytest.raises(ValidationError, match="than there are pairs"):
            DecisionsRecord.model_validate(decided | change)


def test_the_kind_of_a_case_follows_from_objective_and_groups() -> None:
    def case(objective: str = "sigmoid", **changes: Any) -> CaseRecord:
        group = {"source": "", "prompt": 2, "positives": [3], "negatives": [4], **changes}
        groups = [GroupRecord.model_validate(group)]
        return CaseRecord.model_validate({"name": "c", "why": "", "groups": groups, "objective": objective})

    assert kind_of(case()) == "pairs"
    assert kind_of(case(negatives=[4, 5])) == "groups"
    assert kind_of(case(supervised=[1, 4])) == "groups"
    assert kind_of(case("sft-example-mean", negatives=[])) == "examples"


def test_models_without_an_oracle_came_with_version_5(passing_record: Record) -> None:
    content = passing_record.model_dump() | {"schema_version": 4}
    assert Record.model_validate(content).model.expected_by == "oracle"
    content["model"]["expected_by"] = "unpacked-float64"
    with pytest.raises(ValidationError, match="schema_version is 4, but the record holds expectations of"):
        Record.model_validate(content)
    assert Record.model_validate(content | {"schema_version": 5})

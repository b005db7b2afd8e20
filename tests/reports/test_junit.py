from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

import pytest

from reports import junit
from reports.record import Record


def parsed(record: Record) -> ElementTree.Element:
    return ElementTree.fromstring(junit.render(record).encode())


def test_there_is_a_test_for_each_result_each_summary_and_the_run(record: Record) -> None:
    root = parsed(record)
    expected = Counter(
        (f"{r.subject}.{r.dtype}", r.case) for r in record.results if r.subject != record.subjects[2].name
    )
    found = Counter((t.get("classname"), t.get("name")) for t in root.iter("testcase"))
    assert all(found[key] == 1 for key in expected)
    assert found["packed-eager.float64", "all cases, packed path ran"] == 1
    assert found["packparity", "verdict of the run"] == 1
    assert found.total() == len(record.results) + len(record.summaries) + 1


def test_counts_are_those_of_the_tests_in_it(record: Record) -> None:
    root = parsed(record)
    (suite,) = root
    for element in (root, suite):
        assert int(element.attrib["tests"]) == len(list(root.iter("testcase")))
        assert int(element.attrib["failures"]) == len(list(root.iter("failure"))) == 1
        assert int(element.attrib["errors"]) == len(list(root.iter("error"))) == 4
        assert int(element.attrib["skipped"]) == len(list(root.iter("skipped"))) == 6
        assert float(element.attrib["time"]) == pytest.approx(41.26)


@pytest.mark.parametrize(
    ("case", "tag", "kind"),
    [
        ("long-prompt", "failure", "fail"),
        ("one-token-prompt", "error", "error"),
        ("two-groups", "error", "inconclusive"),
        ("group-3-2", "skipped", "not_applicable"),
    ],
)
def test_each_verdict_has_its_outcome_with_its_reason(record: Record, case: str, tag: str, kind: str) -> None:
    result = next(r for r in record.results if r.case == case and r.subject.startswith("mine") and r.dtype == "float32")
    tests = [t for t in parsed(record).iter("testcase") if t.get("name") == case]
    (test,) = (t for t in tests if t.get("classname", "").startswith("mine") and t.get("classname", "").endswith("32"))
    (outcome,) = test
    assert outcome.tag == tag
    assert outcome.get("type") == kind
    assert outcome.get("message", "").startswith(result.reasons[0][:20])
    assert tag == "skipped" or "worst at group 0" in (outcome.text or "")


def test_a_passing_run_is_green(passing_record: Record) -> None:
    root = parsed(passing_record)
    assert (root.get("failures"), root.get("errors")) == ("0", "0")
    assert not list(root.iter("failure")) + list(root.iter("error"))


@pytest.mark.parametrize("verdict", ["ERROR", "FAIL", "INCONCLUSIVE"])
def test_a_run_without_results_is_red(record: Record, verdict: str) -> None:
    empty = {"results": [], "summaries": [], "counts": {}, "num_compared": 0, "verdict": verdict}
    root = parsed(Record.model_validate(record.model_dump() | empty))
    assert int(root.attrib["failures"]) + int(root.attrib["errors"]) == 1


def test_a_subject_whose_packed_path_did_not_run_is_red(passing_record: Record) -> None:
    content = passing_record.model_dump() | {"verdict": "INCONCLUSIVE", "reasons": ["packed path"]}
    content["summaries"][0] |= {"verdict": "INCONCLUSIVE", "reasons": ["fed as many slots as pairwise"]}
    root = parsed(Record.model_validate(content))
    (test,) = (t for t in root.iter("testcase") if t.find("error") is not None and t.get("classname") != "packparity")
    assert test.get("name") == "all cases, packed path ran"
    error = test.find("error")
    assert error is not None
    assert error.get("message") == "fed as many slots as pairwise"
    assert "slots packed 378, pairwise 546" in (error.text or "")


def test_control_characters_are_gone(record: Record) -> None:
    text = junit.render(record)
    assert not [character for character in text if ord(character) < 32 and character != "\n"]

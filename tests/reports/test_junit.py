from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reports import junit
from reports.record import Record
from reports.record_names import NOT_A_PASS, VERDICTS, VerdictName

NOTHING_ELSE: dict[str, object] = {"exact_checks": [], "planted": [], "blind_spots": [], "diagnoses": []}
"""A record of results alone."""


def parsed(record: Record) -> ElementTree.Element:
    return ElementTree.fromstring(junit.render(record).encode())


def test_there_is_a_test_for_each_result_and_each_summary(record: Record) -> None:
    root = parsed(record)
    expected = Counter(
        (f"{r.subject}.{r.dtype}", r.case) for r in record.results if r.subject != record.subjects[2].name
    )
    found = Counter((t.get("classname"), t.get("name")) for t in root.iter("testcase"))
    assert all(found[key] == 1 for key in expected)
    assert found["packed-eager.float64", "packed path ran"] == 1
    assert found["planted fault.float32", "neighbour-predicts"] == 1
    assert found["packed-eager.float32", "exact check causality"] == 1
    exact = {(check.subject, check.dtype, check.check) for check in record.exact_checks}
    assert found.total() == len(record.results) + len(record.summaries) + len(exact) + len(record.planted)


def test_counts_are_those_of_the_tests_in_it(record: Record) -> None:
    root = parsed(record)
    (suite,) = root
    for element in (root, suite):
        assert int(element.attrib["tests"]) == len(list(root.iter("testcase")))
        assert int(element.attrib["failures"]) == len(list(root.iter("failure"))) == 2
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
    root = parsed(Record.model_validate(record.model_dump() | NOTHING_ELSE | empty))
    assert int(root.attrib["failures"]) + int(root.attrib["errors"]) == 1


def a_run(
    record: Record,
    cases: Sequence[VerdictName],
    verdict: VerdictName,
    *,
    reasons: Sequence[str] = (),
    run: VerdictName | None = None,
) -> Record:
    """One subject, with a case of each of these verdicts, a summary and a run."""
    by_verdict = {result.verdict: result for result in record.results if result.dtype == "float32"}
    results = [by_verdict[case].model_dump() | {"subject": "mine", "case": f"{i}"} for i, case in enumerate(cases)]
    counts = dict(Counter(cases))
    summary = record.summaries[0].model_dump() | {
        "subject": "mine", "dtype": "float32", "verdict": verdict, "reasons": [*reasons], "cases_by_verdict": counts,
    }  # fmt: skip
    return Record.model_validate(
        record.model_dump()
        | NOTHING_ELSE
        | {
            "results": results, "summaries": [summary], "counts": counts, "verdict": run or verdict,
            "subjects": [record.subjects[0].model_dump() | {"name": "mine"}],
            "cases": [record.cases[0].model_dump() | {"name": result["case"]} for result in results],
            "num_compared": sum(result["num_compared"] for result in results),
        }
    )  # fmt: skip


def test_a_planted_fault_that_was_not_caught_is_an_error(record: Record) -> None:
    found = {
        test.get("name"): test for test in parsed(record).iter("testcase") if "planted" in test.attrib["classname"]
    }
    assert [name for name, test in found.items() if len(test)] == ["neighbour-predicts"]
    (outcome,) = found["neighbour-predicts"]
    assert (outcome.tag, outcome.get("type")) == ("error", "inconclusive")
    assert outcome.get("message") == "not caught on case balanced: the slot before predicts"


def test_an_exact_check_that_did_not_hold_is_a_failure_with_every_case(record: Record) -> None:
    tests = [test for test in parsed(record).iter("testcase") if test.get("name") == "exact check branch-isolation"]
    (failed,) = (test for test in tests if len(test))
    (outcome,) = failed
    assert outcome.tag == "failure"
    assert outcome.get("message", "").endswith("moved by 1.5e-3; also in 1 other case")
    assert {"FAIL case two-groups", "FAIL case long-prompt"} <= {
        line.partition(":")[0] for line in (outcome.text or "").splitlines()
    }


def test_the_diagnosis_stands_with_the_first_result_that_did_not_pass(record: Record) -> None:
    texts = [outcome.text or "" for test in parsed(record).iter("testcase") for outcome in test]
    (diagnosed,) = (text for text in texts if "probable stage: mask" in text)
    assert "reproduction: results/reproduction" in diagnosed


def packed_path_test(record: Record) -> tuple[str, str]:
    """Outcome and message."""
    (test,) = (test for test in parsed(record).iter("testcase") if test.get("name") == "packed path ran")
    return (test[0].tag, test[0].get("message", "")) if len(test) else ("passed", "")


def test_one_bad_case_is_one_failure(record: Record) -> None:
    root = parsed(a_run(record, ["PASS", "FAIL", "PASS"], "FAIL"))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "1", "0")
    (bad,) = (test for test in root.iter("testcase") if len(test))
    assert bad.get("name") == "1"


@pytest.mark.parametrize(
    ("cases", "verdict", "reasons", "outcome"),
    [
        (["PASS", "FAIL"], "FAIL", [], ("passed", "")),
        (["NOT_APPLICABLE", "PASS"], "PASS", [], ("passed", "")),
        (["NOT_APPLICABLE", "NOT_APPLICABLE"], "NOT_APPLICABLE", [], ("skipped", "not applicable to any case")),
        (["PASS"], "INCONCLUSIVE", ["padded", "slow"], ("error", "padded; slow")),
        (["FAIL"], "FAIL", ["padded"], ("error", "padded")),
        (["ERROR", "FAIL"], "ERROR", ["padded"], ("error", "padded")),
        (["PASS"], "FAIL", ["padded"], ("failure", "padded")),
        ([], "ERROR", [], ("skipped", "ran on no case")),
    ],
)
def test_whether_the_packed_path_ran_is_a_test_of_its_own(
    record: Record,
    cases: list[VerdictName],
    verdict: VerdictName,
    reasons: list[str],
    outcome: tuple[str, str],
) -> None:
    assert packed_path_test(a_run(record, cases, verdict, reasons=reasons)) == outcome


def test_a_subject_that_ran_on_no_case_has_not_shown_its_packed_path(record: Record) -> None:
    run = a_run(record, ["ERROR"], "ERROR")
    unseen = run.model_copy(update={"results": [run.results[0].model_copy(update={"slots": None})]})
    assert packed_path_test(run) == ("passed", "")
    assert packed_path_test(unseen) == ("skipped", "ran on no case")


def test_an_unpacked_subject_has_no_packed_path(record: Record) -> None:
    run = a_run(record, ["PASS"], "PASS")
    subject = record.subjects[0].model_copy(update={"name": "mine", "layout": "unpacked"})
    assert packed_path_test(run.model_copy(update={"subjects": [subject]})) == ("skipped", "claims no packed path")


VERDICT_NAMES = st.sampled_from(VERDICTS)


@settings(max_examples=150, deadline=None)
@given(st.lists(VERDICT_NAMES, max_size=3), VERDICT_NAMES, st.lists(st.just("padded"), max_size=1), VERDICT_NAMES)
def test_a_run_is_green_if_and_only_if_it_is_a_pass(
    small_record: Record, cases: list[VerdictName], verdict: VerdictName, reasons: list[str], run: VerdictName
) -> None:
    try:
        record = a_run(small_record, cases, verdict, reasons=reasons if verdict in NOT_A_PASS else [], run=run)
    except ValidationError:
        # Such a record contradicts itself, or nothing in it explains its verdict: it is never written.
        unexplained = verdict in NOT_A_PASS and verdict not in cases and not reasons
        assert "PASS" in (run, verdict) or unexplained or run not in (verdict, *cases)
        return
    root = parsed(record)
    num_red = int(root.attrib["failures"]) + int(root.attrib["errors"])
    assert num_red == len(root.findall(".//failure")) + len(root.findall(".//error"))
    assert (num_red == 0) == (run == "PASS")
    # The verdict of the run is there whatever the tests of its parts are.
    if run in NOT_A_PASS:
        assert root.find(f".//*[@type='{run.lower()}']") is not None


def test_control_characters_are_gone(record: Record) -> None:
    text = junit.render(record)
    assert not [character for character in text if ord(character) < 32 and character != "\n"]

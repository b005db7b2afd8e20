"""JUnit XML, so that a CI system shows each result as a test.

A test says only what no other says: that of a result its verdict, that of a subject whether its packed path ran, that
of an exact check whether it holds on all cases, that of a planted fault whether the run caught it. Where none of them
shows the verdict of a run that is not PASS, as in a run without results, one more test does: such a run cannot look
green.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from reports.diagnosis import diagnosis_facts
from reports.exact import ExactGroup, exact_groups
from reports.overview import broken, closing_line, finding, own_reasons, worst
from reports.record import Record
from reports.record_faults import PlantedRecord
from reports.record_names import NOT_A_PASS, VerdictName
from reports.record_results import ResultRecord, SubjectSummary
from reports.words import NO_REASON, QUANTITIES, budget_name, count, number, plural, printable

_TAGS: dict[VerdictName, str] = {
    "FAIL": "failure",
    "ERROR": "error",
    "INCONCLUSIVE": "error",
    "NOT_APPLICABLE": "skipped",
}


@dataclass(frozen=True, slots=True)
class JunitTest:
    """One test, by its verdict.

    Args:
        class_name: What a CI system groups it under.
        name: Its name there.
        verdict: FAIL is a failure, ERROR an error, INCONCLUSIVE an error of type "inconclusive", NOT_APPLICABLE a
            skipped test; PASS has no child.
        message: Why it is not PASS.
        details: Shown where the test is red.
    """

    class_name: str
    name: str
    verdict: VerdictName
    message: str
    details: str

    @property
    def is_red(self) -> bool:
        """Whether a CI system shows it red."""
        return self.verdict in NOT_A_PASS


def render(record: Record) -> str:
    """Render as JUnit XML: a test for each result, exact check and planted fault, and for whether packed paths ran.

    Args:
        record: The record.

    Returns:
        An XML document. It holds a failure or an error unless the run is PASS.
    """
    tests = [
        *(_result_test(result, record) for result in record.results),
        *(_packed_path_test(summary, record) for summary in record.summaries),
        *map(_exact_test, exact_groups(record)),
        *map(_planted_test, record.planted),
    ]
    if record.verdict != "PASS" and record.verdict not in {test.verdict for test in tests if test.is_red}:
        tests.append(_run_test(record))
    return document(tests, total_s=record.timing.total_s, created_utc=record.created_utc)


def document(tests: Sequence[JunitTest], *, total_s: float, created_utc: str) -> str:
    """JUnit XML of one suite.

    Args:
        tests: The tests.
        total_s: Wall time of the run.
        created_utc: When it ended.

    Returns:
        An XML document.
    """
    outcomes = Counter(_TAGS.get(test.verdict, "passed") for test in tests)
    totals = {
        "tests": str(len(tests)),
        "failures": str(outcomes["failure"]),
        "errors": str(outcomes["error"]),
        "skipped": str(outcomes["skipped"]),
        "time": f"{total_s:.3f}",
    }
    suites = ElementTree.Element("testsuites", {"name": "packparity", **totals})
    suite = ElementTree.SubElement(suites, "testsuite", {**suites.attrib, "timestamp": printable(created_utc)})
    for test in tests:
        _add(suite, test)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _result_test(result: ResultRecord, record: Record) -> JunitTest:
    name, judgements, diagnosed = _class(result.subject, result.dtype), broken(result), _diagnosed(result, record)
    if not judgements:
        return JunitTest(name, result.case, result.verdict, "; ".join(result.reasons), "\n".join(diagnosed))
    reasons = [*own_reasons(result), f"{len(judgements)} of {plural(len(result.judgements), 'judgement')} did not pass"]
    if nearest := worst([result], tuple(QUANTITIES)):
        reasons.append(f"worst measured / budget {number(nearest.value)} ({budget_name(nearest.judgement)})")
    details = [*(f"{judgement.verdict} {finding(judgement)}" for judgement in judgements), *diagnosed]
    return JunitTest(name, result.case, result.verdict, "; ".join(reasons), "\n".join(details))


def _diagnosed(result: ResultRecord, record: Record) -> list[str]:
    """The diagnosis of the subject, with the first of its results in that dtype that did not pass."""
    own = [d for d in record.diagnoses if (d.subject, d.dtype) == (result.subject, result.dtype)]
    red = [
        r for r in record.results if (r.subject, r.dtype) == (result.subject, result.dtype) and r.verdict in NOT_A_PASS
    ]
    if not red or red[0] is not result:
        return []
    return [f"{name}: {text}" for diagnosis in own for name, text in diagnosis_facts(diagnosis).items()]


def _packed_path_test(summary: SubjectSummary, record: Record) -> JunitTest:
    """What a summary adds to its results: whether the packed path ran."""
    own = [r for r in record.results if (r.subject, r.dtype) == (summary.subject, summary.dtype)]
    verdict: VerdictName = "NOT_APPLICABLE"
    if summary.reasons:
        # The verdict of a summary is the worst of its results and of the proof: if no result has it, the proof does.
        of_results = {result.verdict for result in own}
        is_of_proof = summary.verdict in NOT_A_PASS and summary.verdict not in of_results
        verdict, message = (summary.verdict if is_of_proof else "INCONCLUSIVE"), "; ".join(summary.reasons)
    elif own and all(result.verdict == "NOT_APPLICABLE" for result in own):
        message = "not applicable to any case"
    elif not any(result.slots for result in own):
        message = "ran on no case"
    elif any(subject.name == summary.subject and subject.layout == "unpacked" for subject in record.subjects):
        message = "claims no packed path"
    else:
        verdict, message = "PASS", ""
    slots = f"slots packed {count(summary.slots)}, pairwise {count(summary.pairwise_slots)}"
    return JunitTest(_class(summary.subject, summary.dtype), "packed path ran", verdict, message, slots)


def _exact_test(group: ExactGroup) -> JunitTest:
    message = "" if group.verdict == "PASS" else group.finding
    details = "\n".join(f"{case.verdict} case {case.case}: {case.reason}" for case in group.cases if case.reason)
    return JunitTest(_class(group.subject, group.dtype), f"exact check {group.check}", group.verdict, message, details)


def _planted_test(planted: PlantedRecord) -> JunitTest:
    """Whether the run caught a fault that was planted in it: one that it did not catch makes it blind."""
    message = "" if planted.killed else f"not caught on case {', '.join(planted.cases)}: {planted.what}"
    verdict: VerdictName = "PASS" if planted.killed else "INCONCLUSIVE"
    return JunitTest(_class("planted fault", planted.dtype), planted.fault, verdict, message, "")


def _run_test(record: Record) -> JunitTest:
    """A verdict of the run that no other test shows; a run in which nothing was applicable is an error here."""
    verdict = "ERROR" if record.verdict == "NOT_APPLICABLE" else record.verdict
    message = "; ".join(record.reasons) or f"the verdict of the run is {record.verdict}"
    return JunitTest("packparity", "verdict of the run", verdict, message, closing_line(record))


def _class(subject: str, dtype: str) -> str:
    return f"{subject}.{dtype}"


def _add(suite: ElementTree.Element, test: JunitTest) -> None:
    element = ElementTree.SubElement(suite, "testcase", classname=printable(test.class_name), name=printable(test.name))
    if test.verdict == "PASS":
        return
    message = printable(test.message or NO_REASON)
    outcome = ElementTree.SubElement(element, _TAGS[test.verdict], message=message, type=test.verdict.lower())
    if test.details and test.is_red:
        outcome.text = printable(test.details)

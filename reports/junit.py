"""JUnit XML, so that a CI system shows each result as a test.

Whatever is not PASS or NOT_APPLICABLE turns the build red; a run as a whole is a test too, so that a run without
results cannot look green.
"""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

from reports.overview import broken, closing_line, counts_line
from reports.record import JudgementRecord, Record, VerdictName
from reports.words import NO_REASON, against, at, budget_name, printable

_TAGS: dict[VerdictName, str] = {
    "FAIL": "failure",
    "ERROR": "error",
    "INCONCLUSIVE": "error",
    "NOT_APPLICABLE": "skipped",
}


def render(record: Record) -> str:
    """Render as JUnit XML: a test for each result, for each subject and dtype as a whole, and for the run.

    Args:
        record: The record.

    Returns:
        An XML document. FAIL is a failure, ERROR an error, INCONCLUSIVE an error of type "inconclusive",
        NOT_APPLICABLE a skipped test; PASS has no child.
    """
    suite = ElementTree.Element("testsuite", name="packparity")
    for result in record.results:
        details = "\n".join(line for judgement in broken(result) for line in _evidence(judgement))
        _add_test(suite, _class(result.subject, result.dtype), result.case, result.verdict, result.reasons, details)
    for summary in record.summaries:
        slots = f"slots packed {summary.slots}, pairwise {summary.pairwise_slots}"
        details = f"cases: {counts_line(summary.cases_by_verdict)}; {slots}"
        name = _class(summary.subject, summary.dtype)
        _add_test(suite, name, "all cases, packed path ran", summary.verdict, summary.reasons, details)
    _add_test(suite, "packparity", "verdict of the run", record.verdict, record.reasons, closing_line(record))

    verdicts = Counter([*(r.verdict for r in record.results), *(s.verdict for s in record.summaries), record.verdict])
    totals = {
        "tests": str(verdicts.total()),
        "failures": str(verdicts["FAIL"]),
        "errors": str(verdicts["ERROR"] + verdicts["INCONCLUSIVE"]),
        "skipped": str(verdicts["NOT_APPLICABLE"]),
        "time": f"{record.timing.total_s:.3f}",
    }
    suite.attrib.update(totals, timestamp=printable(record.created_utc))
    suites = ElementTree.Element("testsuites", {"name": "packparity", **totals})
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _class(subject: str, dtype: str) -> str:
    return f"{subject}.{dtype}"


def _add_test(
    suite: ElementTree.Element,
    class_name: str,
    name: str,
    verdict: VerdictName,
    reasons: list[str],
    details: str,
) -> None:
    test = ElementTree.SubElement(suite, "testcase", classname=printable(class_name), name=printable(name))
    if verdict == "PASS":
        return
    message = printable("; ".join(reasons) or NO_REASON)
    outcome = ElementTree.SubElement(test, _TAGS[verdict], message=message, type=verdict.lower())
    if details and verdict != "NOT_APPLICABLE":
        outcome.text = printable(details)


def _evidence(judgement: JudgementRecord) -> list[str]:
    lines = [f"{judgement.verdict} {budget_name(judgement)}: {against(judgement)}"]
    if judgement.reason:
        lines.append(f"  {judgement.reason}")
    for place in judgement.worst[:1]:
        lines.append(f"  worst at {at(place)}")
    return lines

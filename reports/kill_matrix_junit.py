"""A kill matrix as JUnit XML: a test for each planted fault and harmless change in each dtype."""

from __future__ import annotations

from reports.junit import JunitTest, document
from reports.kill_matrix import KillMatrix, MutationRecord, OutcomeName
from reports.kill_matrix_overview import closing_line, margin_words, strongest
from reports.record_names import VerdictName

_VERDICTS: dict[OutcomeName, VerdictName] = {
    "killed": "PASS",
    "quiet": "PASS",
    "hidden": "NOT_APPLICABLE",
    "survived": "FAIL",
    "flagged": "FAIL",
    "error": "ERROR",
    "inconclusive": "INCONCLUSIVE",
}


def render(matrix: KillMatrix) -> str:
    """Render as JUnit XML.

    Args:
        matrix: The kill matrix.

    Returns:
        An XML document. A fault that survived and a harmless change that was flagged are failures, a fault hidden by
        rounding is a skipped test. It holds a failure or an error unless the run is PASS.
    """
    tests = [_test(mutation) for mutation in matrix.mutations]
    if matrix.verdict != "PASS" and not any(test.is_red for test in tests):
        tests.append(JunitTest("packparity faults", "verdict of the run", "ERROR", closing_line(matrix), ""))
    return document(tests, total_s=matrix.timing.total_s, created_utc=matrix.created_utc)


def _test(mutation: MutationRecord) -> JunitTest:
    worst = strongest(mutation)
    reasons = [mutation.outcome, *mutation.reasons]
    details = [mutation.what, f"measured / budget: {margin_words(mutation)}"]
    if worst is not None:
        details.append(f"worst on case {worst.case}: {worst.where}" if worst.case else worst.where)
    return JunitTest(
        f"{mutation.kind}.{mutation.dtype}",
        mutation.label,
        _VERDICTS[mutation.outcome],
        "; ".join(reasons),
        "\n".join(details),
    )

"""Sharded parity as JUnit XML: a test for each subject in each scenario, each check, fault and harmless change."""

from __future__ import annotations

from reports.junit import JunitTest, document
from reports.sharded_overview import closing_line
from reports.sharded_record import CheckRecord, HarmlessRecord, ParityRecord, PlantedFaultRecord, ShardedRecord
from reports.words import number, plural


def render(record: ShardedRecord) -> str:
    """Render as JUnit XML.

    Args:
        record: The record.

    Returns:
        An XML document. It holds a failure or an error unless the run is PASS.
    """
    tests = [
        *map(_parity_test, record.parity),
        *map(_check_test, record.checks),
        *map(_planted_test, record.planted),
        *map(_harmless_test, record.harmless),
    ]
    if record.verdict != "PASS" and record.verdict not in {test.verdict for test in tests if test.is_red}:
        verdict = "ERROR" if record.verdict == "NOT_APPLICABLE" else record.verdict
        tests.append(
            JunitTest(
                "packparity sharded", "verdict of the run", verdict, "; ".join(record.reasons), closing_line(record)
            )
        )
    return document(tests, total_s=record.total_s, created_utc=record.created_utc)


def _parity_test(result: ParityRecord) -> JunitTest:
    broken = [each for each in result.held if each.judgement.verdict != "PASS"]
    reasons = list(result.reasons[:1])
    if broken:
        reasons = [
            f"{len(broken)} of {plural(len(result.held), 'judgement')} did not pass",
            f"worst measured / budget {number(result.worst_ratio)}",
            *reasons,
        ]
    details = [
        f"{each.judgement.verdict} {each.judgement.quantity} to {each.against}: {each.judgement.reason}"
        for each in broken
    ]
    return JunitTest(
        f"{result.subject}.{result.precision}", result.scenario, result.verdict, "; ".join(reasons), "\n".join(details)
    )


def _check_test(check: CheckRecord) -> JunitTest:
    message = "" if check.verdict == "PASS" else check.worst
    details = f"{check.num_compared:,} values, measured / allowed {number(check.ratio)}"
    return JunitTest(f"{check.subject}.{check.precision}", f"check {check.check}", check.verdict, message, details)


def _planted_test(planted: PlantedFaultRecord) -> JunitTest:
    """One that was not caught makes the run blind."""
    checks = ", ".join(f"{check.check} {number(check.ratio)}" for check in planted.checks)
    return JunitTest(
        f"planted fault.{planted.precision}",
        planted.fault,
        "PASS" if planted.caught_by else "INCONCLUSIVE",
        "" if planted.caught_by else f"not caught: {planted.what}",
        f"measured / allowed: {checks}",
    )


def _harmless_test(change: HarmlessRecord) -> JunitTest:
    """One that was taken for a fault makes every FAIL doubtful."""
    return JunitTest(
        f"harmless change.{change.precision}",
        change.change,
        "INCONCLUSIVE" if change.flagged_by else "PASS",
        f"flagged by {', '.join(change.flagged_by)}: {change.what}" if change.flagged_by else "",
        "\n".join(f"{check.check}: {check.worst}" for check in change.checks if check.verdict == "FAIL"),
    )

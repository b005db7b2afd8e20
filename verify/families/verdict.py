"""The verdict over families: on the one call that transformers isolates."""

from __future__ import annotations

from reports.families_record import FamiliesRecord, WayOutcome
from verify.verdict import Verdict, fold

_VERDICTS: dict[WayOutcome, Verdict] = {
    "isolated": Verdict.PASS,
    "leaks": Verdict.FAIL,
    "other-values": Verdict.FAIL,
    "refused": Verdict.INCONCLUSIVE,
    "unresolved": Verdict.INCONCLUSIVE,
}


def families_verdict(record: FamiliesRecord) -> Verdict:
    """FAIL where a family leaks or computes other values, INCONCLUSIVE where one was not measured, else PASS."""
    outcomes = [family.outcome(record.judged_way) for family in record.families]
    return fold(Verdict.INCONCLUSIVE if outcome is None else _VERDICTS[outcome] for outcome in outcomes)

"""What a verdict may claim: not to rest on nothing, nor on parts that rule it out; and counts that add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator

from reports.record_names import NOT_A_PASS, VERDICTS, VerdictName
from reports.values import Count


def _verdict_keys(counts: dict[str, int]) -> dict[str, int]:
    """Check the keys and bring them into one order."""
    if unknown := counts.keys() - set(VERDICTS):
        raise ValueError(f"{sorted(unknown)} among the verdicts counted; there are {', '.join(VERDICTS)}")
    return {name: counts[name] for name in VERDICTS if name in counts}


CountsByVerdict = Annotated[dict[str, Count], AfterValidator(_verdict_keys)]


def check_explained(
    verdict: VerdictName, what: str, reasons: Sequence[str], parts: Mapping[str, int], part: str
) -> None:
    """Refuse a verdict other than PASS that no part has and no reason is given for; no part at all is an ERROR."""
    if verdict == "ERROR" and not any(parts.values()):
        return
    if verdict in NOT_A_PASS and not parts.get(verdict, 0) and not any(reasons):
        raise ValueError(f"{what} is {verdict}, but no {part} is, and no reason is given")


def check_pass(verdict: VerdictName, what: str, num_compared: int, parts: Mapping[str, int], part: str) -> None:
    """Refuse a PASS over nothing, without a part that passed, or beside a part that did not."""
    if verdict != "PASS":
        return
    if num_compared == 0:
        raise ValueError(f"{what} is PASS, but nothing was compared")
    for name in NOT_A_PASS:
        if parts.get(name, 0):
            raise ValueError(f"{what} is PASS, but has {parts[name]} {part} with verdict {name}")
    if not parts.get("PASS", 0):
        raise ValueError(f"{what} is PASS, but no {part} is")


def check_counts(what: str, counts: Mapping[str, int], verdicts: Iterable[VerdictName]) -> None:
    """Refuse counts other than those of the verdicts themselves."""
    seen = Counter(verdicts)
    for name in VERDICTS:
        if counts.get(name, 0) != seen[name]:
            raise ValueError(f"{what} say {counts.get(name, 0)} {name}, but the results hold {seen[name]}")

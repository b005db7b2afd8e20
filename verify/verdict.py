"""Five-state verdicts and how they fold.

A verdict has no truth value: ``if verdict:`` would read NOT_APPLICABLE or INCONCLUSIVE as a pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Verdict(Enum):
    """What a check concluded."""

    PASS = "PASS"
    FAIL = "FAIL"
    ERROR = "ERROR"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_APPLICABLE = "NOT_APPLICABLE"

    def __bool__(self) -> bool:
        raise TypeError(f"a verdict has no truth value; compare it: verdict is Verdict.{self.name}")


_WORST_FIRST = (Verdict.ERROR, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)


def fold(verdicts: Iterable[Verdict]) -> Verdict:
    """Fold verdicts into one: ERROR > FAIL > INCONCLUSIVE > PASS.

    NOT_APPLICABLE never turns into PASS: it is left out of the fold, and where nothing else is left the result
    is NOT_APPLICABLE. Nothing at all is ERROR.

    Args:
        verdicts: The verdicts to fold.

    Returns:
        The worst verdict, NOT_APPLICABLE if there is no other, ERROR if there is none.
    """
    seen = set(verdicts)
    for verdict in _WORST_FIRST:
        if verdict in seen:
            return verdict
    return Verdict.NOT_APPLICABLE if seen else Verdict.ERROR


def exit_status(verdict: Verdict) -> int:
    """Exit status of the command line for the verdict of a whole run.

    Args:
        verdict: The folded verdict.

    Returns:
        0 for PASS, 1 for FAIL, 3 where nothing was proven. (2 is for requests that could not be run.)
    """
    return {Verdict.PASS: 0, Verdict.FAIL: 1}.get(verdict, 3)

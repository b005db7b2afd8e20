"""Patterns over cases: what the failing ones have and the passing ones do not."""

from __future__ import annotations

from collections.abc import Sequence

from verify.cases import Case
from verify.diagnosis.patterns.pattern import Pattern
from verify.faults.catalogue import FAULTS
from verify.faults.conditions import Condition

_AT_MOST = 3


def case_patterns(failing: Sequence[Case], passing: Sequence[Case]) -> tuple[Pattern, ...]:
    """Conditions that hold on exactly the failing cases.

    Args:
        failing: Cases on which the subject failed.
        passing: Cases on which it passed.

    Returns:
        The conditions of the fault catalogue that tell the two apart; none unless both are there.
    """
    if not failing or not passing:
        return ()
    telling = [
        condition
        for condition in _conditions()
        if all(map(condition.holds, failing)) and not any(map(condition.holds, passing))
    ]
    return tuple(
        Pattern(
            "cases-with", f"fails exactly on the {len(failing)} of {len(failing) + len(passing)} cases where {c.words}"
        )
        for c in telling[:_AT_MOST]
    )


def _conditions() -> tuple[Condition, ...]:
    return tuple(dict.fromkeys(fault.bites_where for fault in FAULTS))

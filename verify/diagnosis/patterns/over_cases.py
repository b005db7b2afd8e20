"""Patterns over cases: what the failing ones have and the passing ones do not."""

from __future__ import annotations

from collections.abc import Sequence

from verify.cases import CASE_KINDS, Case, CaseKind
from verify.diagnosis.patterns.pattern import Pattern
from verify.faults.catalogue import FAULTS
from verify.faults.conditions import Condition

_AT_MOST = 3


def case_patterns(failing: Sequence[Case], passing: Sequence[Case]) -> tuple[Pattern, ...]:
    """Kinds, and conditions that hold on exactly the failing cases.

    Args:
        failing: Cases on which the subject failed.
        passing: Cases on which it passed.

    Returns:
        The kind where only cases of other kinds pass; and the conditions of the fault catalogue that tell the two
        apart, each asked of cases of the kinds that it is made for. None unless both are there.
    """
    if not failing or not passing:
        return ()
    telling = []
    for condition, kinds in _conditions().items():
        wrong, right = ([case for case in cases if case.kind in kinds] for cases in (failing, passing))
        if wrong and right and _tells(condition, wrong, right):
            among = "" if len(wrong) == len(failing) else f"of {' and '.join(k for k in CASE_KINDS if k in kinds)}, "
            telling.append(f"{among}fails exactly on the {len(wrong)} of {len(wrong) + len(right)} cases where")
            telling[-1] += f" {condition.words}"
    return (*_by_kind(failing, passing), *(Pattern("cases-with", words) for words in telling[:_AT_MOST]))


def _tells(condition: Condition, failing: Sequence[Case], passing: Sequence[Case]) -> bool:
    return all(map(condition.holds, failing)) and not any(map(condition.holds, passing))


def _by_kind(failing: Sequence[Case], passing: Sequence[Case]) -> tuple[Pattern, ...]:
    wrong = [kind for kind in CASE_KINDS if kind in {case.kind for case in failing}]
    right = [kind for kind in CASE_KINDS if kind in {case.kind for case in passing}]
    if set(wrong) & set(right):
        return ()
    words = f"fails on all {len(failing)} cases of {' and '.join(wrong)}, on none of {' and '.join(right)}"
    return (Pattern("cases-of-kind", words),)


def _conditions() -> dict[Condition, set[CaseKind]]:
    """Conditions of the catalogue, and the kinds of case that they may be asked of."""
    found: dict[Condition, set[CaseKind]] = {}
    for fault in FAULTS:
        found.setdefault(fault.bites_where, set()).update(fault.kinds)
    return found

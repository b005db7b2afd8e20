"""The kinds of case that a run is about: those that its subjects take."""

from __future__ import annotations

from collections.abc import Iterable

from verify.cases import CaseKind
from verify.faults.fault import Fault, Mutation
from verify.subject import Subject, SubjectError, kinds_taken


def kinds_of(subjects: Iterable[Subject]) -> frozenset[CaseKind]:
    """The kinds that some subject takes. One whose ``takes`` is wrong takes none: the gate makes it an ERROR.

    Args:
        subjects: The subjects.

    Returns:
        The kinds.
    """
    found: set[CaseKind] = set()
    for subject in subjects:
        try:
            found |= set(kinds_taken(subject))
        except SubjectError:
            continue
    return frozenset(found)


def concerns(mutation: Mutation, kinds: frozenset[CaseKind]) -> bool:
    """Whether a mutation can be planted on cases of some of these kinds: what cannot is no fault of who takes them."""
    return not kinds.isdisjoint(mutation.kinds)


def concerning(faults: Iterable[Fault], kinds: frozenset[CaseKind]) -> tuple[Fault, ...]:
    """Those faults that can be planted on cases of some of these kinds."""
    return tuple(fault for fault in faults if concerns(fault, kinds))

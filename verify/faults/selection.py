"""Faults by name: the catalogue's, and users' own as ``package.module:NAME`` or ``path/to/file.py:NAME``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from verify.cases import Case
from verify.faults.catalogue import CATALOGUE, mutation_named
from verify.faults.conditions import EVERYWHERE
from verify.faults.fault import Fault, Mutation
from verify.named_object import SelectionError, named_object
from verify.names import unfit_name
from verify.subject import said_by


class NoFaultError(Exception):
    """What a user named is no fault, or cannot be asked where it bites."""


def select_mutations(names: Sequence[str]) -> tuple[Mutation, ...]:
    """The mutations of a run.

    Args:
        names: Names of the catalogue, or of users' own faults; all of the catalogue if there are none.

    Returns:
        The mutations, each once, in the order of the names. A user's value that is no fault is stood for by a fault
        that raises, so that it becomes an ERROR and the run goes on.

    Raises:
        ValueError: An unknown name, or one of two different mutations.
        SelectionError: A user's file or module cannot be imported, or holds nothing of that name, or a fault whose own
            name does not fit a report.
    """
    selected = tuple(_select(name) for name in dict.fromkeys(names)) or CATALOGUE
    of_name: dict[str, Mutation] = {mutation.name: mutation for mutation in CATALOGUE}
    for mutation in selected:
        if of_name.setdefault(mutation.name, mutation) is not mutation:
            raise ValueError(f"fault {mutation.name!r} is the name of another fault: give yours a name of its own")
    return selected


def _select(name: str) -> Mutation:
    if ":" not in name:
        return mutation_named(name)
    found = named_object(name, role="fault", listed=lambda value: isinstance(value, Mutation))
    if not isinstance(found, Mutation) and callable(found):
        try:
            found = found()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the user's function raises
            return _stand_in(name, f"{name}() raised {said_by(error)}")
    if not isinstance(found, Mutation):
        kind = type(found).__name__
        return _stand_in(
            name, f"{name} is of type {kind}: a Fault or EquivalentMutant of verify.faults.fault is needed"
        )
    if wrong := unfit_name(found.name):
        raise SelectionError(f"fault {name}: {wrong}")
    return found


def asked_where_it_bites(mutation: Mutation, cases: Sequence[Case]) -> Mutation:
    """The mutation, or what stands for it where its condition raises on some case.

    Args:
        mutation: Any mutation.
        cases: The cases of the run.

    Returns:
        A mutation that can be asked for each of these cases.
    """
    try:
        for case in cases:
            mutation.bites(case)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's condition raises
        reason = f"on case {case.name} its condition raised {said_by(error)}"
        return replace(mutation, bites_where=EVERYWHERE, stage="layout", replacement=partial(_refuse, reason))
    return mutation


def _stand_in(name: str, reason: str) -> Fault:
    return Fault(
        name=name, stage="layout", replacement=partial(_refuse, reason), what="No fault.", signature="cannot be planted"
    )


def _refuse(reason: str, honest: Callable[..., Any], *arguments: object) -> NoReturn:
    raise NoFaultError(reason)

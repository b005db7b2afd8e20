"""Subjects by name: our own, planted faults, and third parties' by ``package.module:Class`` or ``file.py:Class``.

Nothing is imported that the user did not name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from verify.frozen_subject import frozen
from verify.named_object import SelectionError, named_object
from verify.subject import Subject, SubjectError, said_by
from verify.subjects.hf_position_ids import HF_POSITION_IDS_SUBJECTS
from verify.subjects.packed import PACKED_SUBJECTS, PackedSubject
from verify.subjects.pairwise import VARIATIONS
from verify.subjects.two_pass import TWO_PASS_SUBJECTS, TwoPassSubject

BUILT_IN: dict[str, Subject] = {
    **{subject.name: subject for subject in PACKED_SUBJECTS},
    **{subject.name: subject for subject in TWO_PASS_SUBJECTS},
    **{subject.name: subject for subject in HF_POSITION_IDS_SUBJECTS},
    **{
        f"pairwise-{variation.name}": replace(variation, name=f"pairwise-{variation.name}")
        for variation in VARIATIONS.values()
    },
}

FAULT_PREFIX = "fault:"


ONLY_IN_FULL = (
    "dense-sdpa/repeat-prompt-token",
    "dense-sdpa/row-per-group",
    "split/bins",
    "dense-sdpa/prefix-tree",
    "flex/prefix-tree",
    "dense-sdpa/block-diagonal",
    "flex/block-diagonal",
    *(subject.name for subject in TWO_PASS_SUBJECTS),
)
"""Subjects that a quick run leaves out: the backend and the layout of each are in it, not together."""


def default_subjects(backends: Sequence[str] = (), *, full: bool = True) -> tuple[Subject, ...]:
    """Our packed subjects.

    Args:
        backends: Those of these backends, all of them; of every backend if empty.
        full: Whether those that a quick run leaves out are among them where no backend is named.

    Returns:
        The subjects.

    Raises:
        SelectionError: An unknown backend; the message lists the valid ones.
    """
    ours: tuple[PackedSubject | TwoPassSubject, ...] = (*PACKED_SUBJECTS, *TWO_PASS_SUBJECTS)
    known = sorted({subject.backend for subject in PACKED_SUBJECTS})
    for backend in backends:
        if backend not in known:
            raise SelectionError(f"unknown backend {backend!r}: give {', '.join(known)}")
    if backends:
        return tuple(subject for subject in ours if subject.backend in backends)
    return tuple(subject for subject in ours if full or subject.name not in ONLY_IN_FULL)


def select_subject(name: str) -> Subject:
    """One subject by name.

    Args:
        name: A built-in name, ``package.module:Class`` or ``path/to/file.py:Class``, or ``fault:`` and the name of a
            planted fault, as ``packparity faults`` takes it (``fault:none``: the honest step that faults are planted
            in). A class is called without arguments; an instance is taken as it is.

    Returns:
        The subject; what a third party's says about itself is checked, and asked only here.

    Raises:
        SelectionError: Unknown name, an import that failed, no such attribute, or not a subject.
        ValueError: Unknown fault; the message gives the nearest names.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name.startswith(FAULT_PREFIX):
        return _planted(name.removeprefix(FAULT_PREFIX))
    if ":" not in name:
        close = get_close_matches(name, BUILT_IN, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise SelectionError(
            f"unknown subject {name!r}{hint}: give one of {', '.join(BUILT_IN)}, "
            "or package.module:Class, or file.py:Class, or fault:NAME (docs/faults.md)"
        )
    return _instantiate(named_object(name, role="subject", listed=lambda value: isinstance(value, type)), name)


def _planted(fault: str) -> Subject:
    from verify.faults.selection import select_mutations  # the whole catalogue, which other runs do without
    from verify.subjects.faulty import FaultySubject

    return FaultySubject(mutation=None if fault == "none" else select_mutations([fault])[0])


def _instantiate(found: Any, name: str) -> Subject:
    try:
        subject = found() if isinstance(found, type) else found
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's constructor raises
        raise SelectionError(f"subject {name} cannot be made without arguments: {said_by(error)}") from error
    try:
        return frozen(subject)
    except SubjectError as error:
        raise SelectionError(f"subject {name}: {error}") from error

"""Subjects by name: the literal table of our own, and third parties' by ``package.module:Class`` or ``file.py:Class``.

Nothing is imported that the user did not name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from verify.subject import Subject, SubjectError, layout_of
from verify.subjects.packed import PACKED_SUBJECTS
from verify.subjects.pairwise import VARIATIONS

BUILT_IN: dict[str, Subject] = {
    **{subject.name: subject for subject in PACKED_SUBJECTS},
    **{
        f"pairwise-{variation.name}": replace(variation, name=f"pairwise-{variation.name}")
        for variation in VARIATIONS.values()
    },
}


class SelectionError(ValueError):
    """A subject that was asked for cannot be had; the message says why and what can."""


def default_subjects(backends: Sequence[str] = ()) -> tuple[Subject, ...]:
    """Our packed subjects, of all backends or of those named.

    Raises:
        SelectionError: An unknown backend; the message lists the valid ones.
    """
    known = sorted({subject.backend for subject in PACKED_SUBJECTS})
    for backend in backends:
        if backend not in known:
            raise SelectionError(f"unknown backend {backend!r}: give {', '.join(known)}")
    return tuple(s for s in PACKED_SUBJECTS if not backends or s.backend in backends)


def select_subject(name: str) -> Subject:
    """One subject by name.

    Args:
        name: A built-in name, ``package.module:Class`` or ``path/to/file.py:Class``. A class is called without
            arguments; an instance is taken as it is.

    Returns:
        The subject; name, layout and method are checked.

    Raises:
        SelectionError: Unknown name, an import that failed, no such attribute, or not a subject.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name:
        close = get_close_matches(name, BUILT_IN, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise SelectionError(
            f"unknown subject {name!r}{hint}: give one of {', '.join(BUILT_IN)}, "
            "or package.module:Class, or file.py:Class"
        )
    origin, _, attribute = name.rpartition(":")
    return _instantiate(_import(origin), origin, attribute)


def _import(origin: str) -> ModuleType:
    try:
        if not origin.endswith(".py"):
            _make_importable(Path.cwd())
            return importlib.import_module(origin)
        path = Path(origin)
        if not path.is_file():
            raise SelectionError(f"subject file {origin}: there is no such file")
        spec = importlib.util.spec_from_file_location(f"packparity_subject_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise SelectionError(f"subject file {origin}: cannot be imported as Python")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses and pickle look for it
        _make_importable(path.resolve().parent)
        spec.loader.exec_module(module)
    except SelectionError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's module raises on import
        line = _line_in(error, origin)
        raise SelectionError(f"subject {origin}{line} does not import: {type(error).__name__}: {error}") from error
    return module


def _make_importable(folder: Path) -> None:
    """What lies beside a subject can be imported by it, now and later, as if Python had been started there."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _line_in(error: BaseException, origin: str) -> str:
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f", line {error.lineno},"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == Path(origin).name:
            line = f", line {trace.tb_lineno},"
        trace = trace.tb_next
    return line


def _instantiate(module: ModuleType, origin: str, attribute: str) -> Subject:
    found = getattr(module, attribute, None)
    if found is None:
        names = [n for n, value in vars(module).items() if isinstance(value, type) and not n.startswith("_")]
        listed = f"; it defines {', '.join(names)}" if names else ""
        raise SelectionError(f"subject {origin} has no {attribute!r}{listed}")
    try:
        subject = found() if isinstance(found, type) else found
    except (Exception, SystemExit) as error:  # whatever the user's constructor raises
        raise SelectionError(
            f"subject {origin}:{attribute} cannot be made without arguments: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(getattr(subject, "name", None), str) or not subject.name:
        raise SelectionError(f"subject {origin}:{attribute} has no name: give it a non-empty string attribute 'name'")
    if not callable(getattr(subject, "per_token_logps", None)):
        raise SelectionError(f"subject {origin}:{attribute} has no method per_token_logps(model, groups)")
    try:
        layout_of(subject)
    except SubjectError as error:
        raise SelectionError(str(error)) from error
    return subject  # type: ignore[no-any-return]

"""The file of a subject and what it imports from beside it: without them nobody else can run it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from verify.subjects.selection import FAULT_PREFIX


def subject_file(named: str) -> Path | None:
    """The file of a subject named ``path/to/file.py:Class`` or ``fault:path/to/file.py:NAME``; None for any other."""
    origin, _, _ = named.removeprefix(FAULT_PREFIX).rpartition(":")
    return Path(origin) if origin.endswith(".py") else None


def with_what_it_imports(named: str) -> tuple[Path, ...]:
    """The subject's file and the files beside it that it imports, directly or through each other.

    Args:
        named: The subject as it is named on the command line.

    Returns:
        Paths, the subject's own first; nothing if the subject is not a file. Packages beside it are not followed
        (:func:`packages_beside` names them).
    """
    file = subject_file(named)
    found: dict[Path, None] = {}
    waiting = [file] if file is not None else []
    while waiting:
        path = waiting.pop(0)
        if path not in found:
            found[path] = None
            waiting += [beside for name in _imported(path) if (beside := path.parent / f"{name}.py").is_file()]
    return tuple(found)


def packages_beside(named: str) -> tuple[str, ...]:
    """Packages (folders) beside the subject's file that it or what it imports needs."""
    names = {
        name
        for path in with_what_it_imports(named)
        for name in _imported(path)
        if (path.parent / name / "__init__.py").is_file()
    }
    return tuple(sorted(names))


def _imported(path: Path) -> Iterator[str]:
    """First parts of the names of all modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]

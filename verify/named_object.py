"""What a user names as ``package.module:NAME`` or ``path/to/file.py:NAME``. Nothing is imported that was not named."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from verify.local_modules import SharedNameError, local_modules
from verify.subject import said_by


class SelectionError(ValueError):
    """Something that was asked for by name cannot be had; the message says why and what can."""


def named_object(name: str, *, role: str, listed: Callable[[Any], bool]) -> Any:
    """The object that a name of the form ``origin:attribute`` stands for.

    Args:
        name: ``package.module:NAME`` or ``path/to/file.py:NAME``.
        role: What it should be, in one word for messages: "subject", "fault".
        listed: Which other values of the module a message lists where the attribute is missing.

    Returns:
        The attribute's value, whatever it is.

    Raises:
        SelectionError: No such file, an import that failed, a module beside it whose name another one has, or no such
            attribute.
    """
    origin, _, attribute = name.rpartition(":")
    module = _import(origin, role)
    found = getattr(module, attribute, None)
    if found is None:
        names = [n for n, value in vars(module).items() if not n.startswith("_") and listed(value)]
        defines = f"; it defines {', '.join(names)}" if names else ""
        raise SelectionError(f"{role} {origin} has no {attribute!r}{defines}")
    return found


def _import(origin: str, role: str) -> ModuleType:
    try:
        if not origin.endswith(".py"):
            local_modules().add(Path.cwd())
            return importlib.import_module(origin)
        path = Path(origin)
        if not path.is_file():
            raise SelectionError(f"{role} file {origin}: there is no such file")
        digest = hashlib.sha256(str(path.resolve()).encode(errors="surrogateescape")).hexdigest()[:12]
        spec = importlib.util.spec_from_file_location(f"packparity_{role}_{path.stem}_{digest}", path)
        if spec is None or spec.loader is None:
            raise SelectionError(f"{role} file {origin}: cannot be imported as Python")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses and pickle look for it
        local_modules().add(path.resolve().parent)
        spec.loader.exec_module(module)
    except (SelectionError, KeyboardInterrupt):
        raise
    except SharedNameError as error:
        raise SelectionError(f"{role} {origin}: {error}") from error
    except BaseException as error:  # whatever the user's module raises on import
        line = _line_in(error, origin)
        raise SelectionError(f"{role} {origin}{line} does not import: {said_by(error)}") from error
    return module


def _line_in(error: BaseException, origin: str) -> str:
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f", line {error.lineno},"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == Path(origin).name:
            line = f", line {trace.tb_lineno},"
        trace = trace.tb_next
    return line

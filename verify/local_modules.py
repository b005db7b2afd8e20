"""Modules that lie beside users' files: each name belongs to one folder, or the run is refused.

Python knows a module by its name alone. Of two files that both say ``import helpers``, each with a ``helpers.py`` of
its own beside it, the second would silently be given the module of the first, also where a function imports it later.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_NOT_THEIRS = sys.stdlib_module_names | {"verify", "reports", "packed_impl", "reference_impl"}
_INSTALLED = ("site-packages", "dist-packages")


class SharedNameError(ValueError):
    """Two folders hold a module of the same name."""


class LocalModules(MetaPathFinder):
    """Finds modules in users' folders before installed ones, as if Python had been started there.

    Standard library and this project come first even so: what the judge needs cannot be replaced.

    Raises:
        SharedNameError: From ``import``, where two of the folders hold the module.
    """

    def __init__(self) -> None:
        self.folders: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's file in the only folder that has one; None where others shall look."""
        if path is not None or fullname in _NOT_THEIRS:
            return None
        found = [(folder, spec) for folder in self.folders if (spec := PathFinder.find_spec(fullname, [folder]))]
        if len(found) > 1:
            raise _shared(fullname, found[0][0], found[1][0])
        # A folder without __init__.py is a package only where there is no other of its name: through sys.path.
        return found[0][1] if found and found[0][1].has_location else None

    def add(self, folder: Path) -> None:
        """Let modules of a folder be imported, from now on.

        Raises:
            SharedNameError: The folder holds a module of a name that was already imported from elsewhere.
        """
        added = str(folder.resolve())
        if added in self.folders:
            return
        for name, module in tuple(sys.modules.items()):
            if "." in name or name in _NOT_THEIRS or name == "__main__":
                continue
            where = _folder_of(module)
            if where in ("", added) or any(part in _INSTALLED for part in Path(where).parts):
                continue
            if PathFinder.find_spec(name, [added]) is not None:
                raise _shared(name, where, added)
        self.folders.append(added)
        if added not in sys.path:
            sys.path.append(added)


def local_modules() -> LocalModules:
    """The finder of this process; installed where it is not yet."""
    for finder in sys.meta_path:
        if isinstance(finder, LocalModules):
            return finder
    finder = LocalModules()
    sys.meta_path.insert(0, finder)
    return finder


def _folder_of(module: ModuleType) -> str:
    """The folder in which a top-level module or package lies; "" where it has none."""
    path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if not isinstance(path, str):
        return ""
    folder = Path(path).resolve().parent
    is_package = Path(path).stem == "__init__"
    return str(folder.parent if is_package else folder)


def _shared(name: str, one: str, other: str) -> SharedNameError:
    return SharedNameError(
        f"{one} and {other} both hold a module {name!r}, and one process can only have one of them: run them one at a "
        "time, or rename one"
    )

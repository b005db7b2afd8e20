"""The oracle shares no code with what it judges."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import reference_impl

ALLOWED = {"torch", "numpy", "reference_impl"} | sys.stdlib_module_names


def imported_packages(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else str(node.module).split(".")[0])
    return found


def test_only_torch_numpy_and_the_standard_library_are_imported() -> None:
    files = sorted(Path(reference_impl.__file__).parent.rglob("*.py"))
    assert len(files) > 5
    assert {file.name: imported_packages(file.read_text()) - ALLOWED for file in files} == {
        f.name: set() for f in files
    }


def test_a_foreign_import_would_be_found() -> None:
    assert imported_packages("def f():\n    from transformers.cache import x\n    import peft") == {
        "transformers",
        "peft",
    }

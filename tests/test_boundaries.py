"""What may import what: read off the syntax tree, then tried in a fresh interpreter with the rest blocked.

The oracle must not be able to share a bug with what it judges, an old record must be readable without what produced it,
and a subject reaches the judge through an adapter only.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = frozenset({"verify", "reference_impl", "packed_impl", "reports"})
STANDARD_LIBRARY = frozenset(sys.stdlib_module_names)
NAMES_THAT_SAY_NOTHING = frozenset({"utils", "util", "common", "helpers", "helper", "misc"})

# Beside the standard library and itself.
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "reference_impl": frozenset({"torch", "numpy"}),
    "packed_impl": frozenset({"torch", "transformers", "peft", "safetensors", "numpy"}),
    "reports": frozenset({"pydantic", "rich", "jinja2", "markupsafe", "matplotlib"}),
    "verify": frozenset(
        "torch numpy transformers peft safetensors pyarrow hypothesis jinja2 pydantic rich typer reports".split()  # noqa: SIM905
    )
    | {"pydantic_core"},
    "verify/subjects": frozenset({"torch", "reference_impl", "packed_impl"}),
}
IMPLEMENTATIONS = ("reference_impl", "packed_impl")
# Names of users' own subjects and faults are known at run time only.
MAY_IMPORT_BY_COMPUTED_NAME = frozenset({"verify/named_object.py"})


@dataclass(frozen=True)
class Import:
    """One import in a file, by the first part of the module's name."""

    package: str
    line: int


RELATIVE, COMPUTED = "something relative", "a computed name"


def imports(source: str) -> Iterator[Import]:
    """Every import of a file, also inside functions, behind ``TYPE_CHECKING`` and through ``import_module``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name.partition(".")[0], node.lineno)
        elif isinstance(node, ast.ImportFrom):
            yield Import(RELATIVE if node.level else (node.module or "").partition(".")[0], node.lineno)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            name = node.args[0] if node.args else None
            known = name.value if isinstance(name, ast.Constant) else None
            yield Import(known.partition(".")[0] if isinstance(known, str) else COMPUTED, node.lineno)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def violations(files: Mapping[str, str]) -> list[str]:
    """Break of a rule, as ``file:line imports package``.

    Args:
        files: Path from the root, with slashes, to the source.
    """
    found = []
    for path, source in sorted(files.items()):
        package = path.partition("/")[0]
        part = next(p for p in sorted(MAY_IMPORT, key=len, reverse=True) if path.startswith(f"{p}/"))
        for imported in imports(source):
            may = STANDARD_LIBRARY | {package} | MAY_IMPORT[part]
            if path in MAY_IMPORT_BY_COMPUTED_NAME:
                may |= {COMPUTED}
            if imported.package not in may:
                found.append(f"{path}:{imported.line} imports {imported.package}")
    return found


def sources() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
    }


# The rules hold.


def test_every_package_imports_only_what_it_may() -> None:
    assert violations(sources()) == []


def test_every_package_was_looked_at() -> None:
    counts = {package: sum(path.startswith(f"{package}/") for path in sources()) for package in OURS}
    assert all(count > 5 for count in counts.values()), counts


def test_only_adapters_import_an_implementation() -> None:
    """Not the judge, not the scribe, and neither implementation the other."""
    importing = {
        (path.rpartition("/")[0], imported.package)
        for path, source in sources().items()
        for imported in imports(source)
        if imported.package in IMPLEMENTATIONS and not path.startswith(f"{imported.package}/")
    }
    assert importing == {("verify/subjects", "reference_impl"), ("verify/subjects", "packed_impl")}


def test_no_adapter_sees_both_sides() -> None:
    """What is judged and what it is judged by meet in the gate, as values."""
    for path, source in sources().items():
        assert len({i.package for i in imports(source)} & set(IMPLEMENTATIONS)) < 2, path


def test_the_oracle_and_the_packed_code_have_no_module_in_common_but_torch() -> None:
    shared = MAY_IMPORT["reference_impl"] & MAY_IMPORT["packed_impl"]
    assert shared == {"torch", "numpy"}


def test_no_module_has_a_name_that_says_nothing() -> None:
    names = {part for path in sources() for part in Path(path).with_suffix("").parts}
    assert not names & NAMES_THAT_SAY_NOTHING


def test_everything_imported_from_elsewhere_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["parquet"], *extras["calibrate"]]
    declared = {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}
    imported = {i.package for source in sources().values() for i in imports(source)}
    foreign = imported - STANDARD_LIBRARY - OURS - {COMPUTED}
    assert foreign == declared


# The rules can fail.


@pytest.mark.parametrize(
    ("path", "source", "violation"),
    [
        ("reference_impl/a.py", "import transformers", "1 imports transformers"),
        ("reference_impl/a.py", "import torch\nimport packed_impl.forest", "2 imports packed_impl"),
        ("reference_impl/a.py", "from . import b", "1 imports something relative"),
        ("packed_impl/a.py", "def f():\n    from reference_impl import logps", "2 imports reference_impl"),
        ("packed_impl/a.py", "from verify.groups import PreferenceGroup", "1 imports verify"),
        ("packed_impl/a.py", "import importlib\nimportlib.import_module('verify')", "2 imports verify"),
        ("packed_impl/a.py", "__import__('reports.record')", "1 imports reports"),
        ("reports/a.py", "if TYPE_CHECKING:\n    import torch", "2 imports torch"),
        ("reports/a.py", "from verify.verdict import Verdict", "1 imports verify"),
        ("verify/a.py", "import json, packed_impl", "1 imports packed_impl"),
        ("verify/data/a.py", "from reference_impl.groups import unpack", "1 imports reference_impl"),
        ("verify/a.py", "import importlib\nimportlib.import_module(name)", "2 imports a computed name"),
        ("verify/subjects/a.py", "import trl", "1 imports trl"),
    ],
)
def test_a_foreign_import_is_found(path: str, source: str, violation: str) -> None:
    assert violations({path: source}) == [f"{path}:{violation}"]


def test_what_is_allowed_is_not_reported() -> None:
    assert violations({
        "reference_impl/a.py": "import math, torch\nfrom reference_impl.groups import unpack",
        "packed_impl/a.py": "import torch.nn.functional as F\nimport peft",
        "verify/subjects/a.py": "from packed_impl import step\nfrom verify.groups import PreferenceGroup",
        "reports/a.py": "import json\nfrom pydantic import BaseModel",
    }) == []  # fmt: skip


# And they hold where it counts: with the rest out of reach.

IMPORT_ALL_BUT = """
import sys

BLOCKED = {blocked!r}

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Block())
for name in BLOCKED:
    try:
        __import__(name)
    except ImportError as error:
        assert "is blocked" in str(error), error
    else:
        sys.exit("the block does not work on " + name)
"""
IMPORT_PACKAGE = """
import importlib, pkgutil
package = importlib.import_module({package!r})
names = [m.name for m in pkgutil.walk_packages(package.__path__, {package!r} + ".")]
for name in names:
    importlib.import_module(name)
print(len(names), "imported,", sorted(BLOCKED & set(sys.modules)))
"""


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("package", "blocked"),
    [
        ("reference_impl", {"transformers", "peft", "verify", "packed_impl", "reports", "safetensors", "pydantic"}),
        ("packed_impl", {"verify", "reference_impl", "reports", "pydantic", "typer"}),
        ("reports", {"torch", "transformers", "peft", "verify", "packed_impl", "reference_impl"}),
    ],
    ids=["reference_impl", "packed_impl", "reports"],
)  # fmt: skip
def test_every_module_imports_where_the_rest_is_out_of_reach(package: str, blocked: set[str]) -> None:
    done = run_python(IMPORT_ALL_BUT.format(blocked=blocked) + IMPORT_PACKAGE.format(package=package))
    assert done.returncode == 0, done.stderr
    count, _, loaded = done.stdout.strip().partition(" imported, ")
    assert int(count) > 5
    assert loaded == "[]"


def test_the_block_would_be_noticed() -> None:
    done = run_python(IMPORT_ALL_BUT.format(blocked={"reports"}) + "import reports.record\n")
    assert done.returncode == 1
    assert "ImportError: reports is blocked" in done.stderr


def test_help_is_shown_without_importing_torch() -> None:
    """Whoever asks for the options should not wait for a minute of imports."""
    heavy = {"torch", "transformers", "peft", "matplotlib", "numpy"}
    program = IMPORT_ALL_BUT.format(blocked=heavy) + (
        "import runpy\nsys.argv = ['packparity', *sys.argv[1:]]\nrunpy.run_module('verify', run_name='__main__')\n"
    )
    for arguments, expected in (["--help"], "check"), (["check", "--help"], "--label-smoothing"):
        done = run_python(program, *arguments)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout

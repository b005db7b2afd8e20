"""A record must be readable, and renderable, by a program that has nothing of what produced it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import reports
from reports.record import Record
from reports.store import write_record

FORBIDDEN = {"verify", "reference_impl", "packed_impl", "torch", "transformers", "peft"}
PACKAGE = Path(reports.__file__).parent
PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {forbidden!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
try:
    import torch
except ImportError:
    pass
else:
    sys.exit("the block does not work")

from pathlib import Path
from rich.console import Console
from reports import store, terminal

record = store.read_record(Path({source!r}))
store.write_reports(record, Path({target!r}))
terminal.print_record(record, Console())
print("loaded", sorted({forbidden!r} & set(sys.modules)))
"""


def test_an_old_result_can_be_rendered_again_where_torch_is_not_installed(small_record: Record, tmp_path: Path) -> None:
    source, target = write_record(small_record, tmp_path / "old"), tmp_path / "new"
    program = PROGRAM.format(forbidden=FORBIDDEN, source=str(source), target=str(target))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("loaded []")
    assert (target / "record.json").read_bytes() == source.read_bytes()
    assert {path.name for path in target.iterdir()} == {"record.json", "report.md", "report.html", "junit.xml"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_no_module_names_what_it_must_not_import(path: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").partition(".")[0])
    assert not imported & FORBIDDEN
    assert "pyplot" not in path.read_text(encoding="utf-8")


def test_the_templates_and_their_style_lie_in_the_package() -> None:
    names = {path.name for path in (PACKAGE / "templates").iterdir()}
    pages = ("report", "kill_matrix", "data_report", "families", "preflight", "sharded", "cost", "forecast")
    assert names == {*(f"{page}.html.j2" for page in pages), "report.css"}

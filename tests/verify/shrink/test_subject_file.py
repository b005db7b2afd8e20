"""A subject's file goes along with the files beside it that it needs, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from verify.shrink.subject_file import packages_beside, subject_file, with_what_it_imports


@pytest.mark.parametrize(
    "named", ["split", "package.module:Class", "fault:causal-mask-only", "fault:package.module:NAME"]
)
def test_what_is_no_file_has_none(named: str) -> None:
    assert subject_file(named) is None
    assert with_what_it_imports(named) == packages_beside(named) == ()


def test_imports_beside_the_file_are_followed(tmp_path: Path) -> None:
    sources = {
        "mine.py": "import torch, json\nfrom near import thing\n\ndef late():\n    import later\n",
        "near.py": "import mine\nimport farther.part\nfrom . import relative\n",
        "later.py": "",
        "relative.py": "",
        "unused.py": "",
        "farther/__init__.py": "",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source, encoding="utf-8")
    named = f"{tmp_path}/mine.py:Mine"
    assert subject_file(f"fault:{named}") == subject_file(named)
    assert subject_file(named) == tmp_path / "mine.py"
    assert [path.name for path in with_what_it_imports(named)] == ["mine.py", "near.py", "later.py"]
    assert packages_beside(named) == ("farther",)

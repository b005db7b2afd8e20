"""The subject that docs/adding-a-subject.md begins with, as a reader copies it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verify.cases import Case
from verify.gate import GateOutcome
from verify.subjects.selection import select_subject
from verify.verdict import Verdict

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-subject.md"
RIGHT, WRONG = "[prompt[-1], *slots[:-1]]", "[slot - 1 for slot in slots]"


@pytest.mark.parametrize(("read_at", "verdict"), [(RIGHT, Verdict.PASS), (WRONG, Verdict.FAIL)])
def test_the_subject_of_the_documentation_passes_and_with_its_bug_fails(
    gate: Callable[..., GateOutcome], two_pairs_case: Case, tmp_path: Path, read_at: str, verdict: Verdict
) -> None:
    (code,) = (block.removeprefix("python\n") for block in PAGE.read_text().split("```") if "class MySubject" in block)
    assert RIGHT in code
    file = tmp_path / f"documented_{verdict.name.lower()}.py"
    file.write_text(code.replace(RIGHT, read_at))
    (result,) = gate([select_subject(f"{file}:MySubject")], [two_pairs_case]).results
    assert result.verdict is verdict

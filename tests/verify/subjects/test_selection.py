"""Subjects by name: ours from a literal table, anyone's from a module or a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from verify.local_modules import LocalModules
from verify.named_object import SelectionError
from verify.subject import layout_of
from verify.subjects.hf_position_ids import HF_POSITION_IDS_SUBJECTS
from verify.subjects.packed import PACKED_SUBJECTS
from verify.subjects.pairwise import VARIATIONS
from verify.subjects.selection import BUILT_IN, ONLY_IN_FULL, default_subjects, select_subject
from verify.subjects.two_pass import TWO_PASS_SUBJECTS

GOOD = """
class Mine:
    name = "mine"
    def per_token_logps(self, model, groups):
        return []

made = Mine()
"""

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _no_folders_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test writes a mine.py into a folder of its own; in one process they would be refused."""
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if not isinstance(f, LocalModules)])
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(source: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(source, encoding="utf-8")
        return path

    return to_file


def test_every_built_in_subject_is_found_by_its_own_name() -> None:
    parts = (PACKED_SUBJECTS, TWO_PASS_SUBJECTS, HF_POSITION_IDS_SUBJECTS, VARIATIONS)
    assert len(BUILT_IN) == sum(map(len, parts))
    for name, subject in BUILT_IN.items():
        assert subject.name == name
        assert select_subject(name) is subject
        saves_slots = not name.startswith(("pairwise-", "hf-position-ids/several-rows")) and "two-pass" not in name
        assert layout_of(subject) == ("packed" if saves_slots else "unpacked")


def test_the_packed_subjects_run_by_default_and_can_be_chosen_by_backend() -> None:
    assert default_subjects() == (*PACKED_SUBJECTS, *TWO_PASS_SUBJECTS)
    left_out = set(default_subjects()) - set(default_subjects(full=False))
    assert {subject.name for subject in left_out} == set(ONLY_IN_FULL)
    assert set(default_subjects(["flex"], full=False)) & left_out
    chosen = default_subjects(["split"])
    assert {subject.backend for subject in chosen} == {"split"}  # type: ignore[attr-defined]
    assert len(chosen) >= 2
    with pytest.raises(SelectionError, match="unknown backend 'splt': give dense-eager, dense-sdpa, flex, split"):
        default_subjects(["split", "splt"])


def test_a_file_may_hold_a_class_or_an_instance(write: Write) -> None:
    path = write(GOOD)
    assert select_subject(f"{path}:Mine").name == "mine"
    assert select_subject(f"{path}:made").name == "mine"


def test_a_relative_path_and_a_module_name_work_too(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(GOOD)
    monkeypatch.chdir(path.parent)
    assert select_subject("mine.py:Mine").name == "mine"
    monkeypatch.syspath_prepend(str(path.parent))
    try:
        assert select_subject("mine:Mine").name == "mine"
    finally:
        sys.modules.pop("mine", None)


def test_a_file_does_not_take_the_name_of_another_module(write: Write) -> None:
    before = set(sys.modules)
    select_subject(f"{write(GOOD)}:Mine")
    assert all(name.startswith("packparity_subject_mine_") for name in set(sys.modules) - before)


def test_an_unknown_name_lists_the_valid_ones_and_the_nearest() -> None:
    with pytest.raises(SelectionError, match=r"unknown subject 'dense-sdp' \(did you mean dense-sdpa\?\)") as caught:
        select_subject("dense-sdp")
    for name in (*BUILT_IN, "package.module:Class", "file.py:Class"):
        assert name in str(caught.value)


SPOILT: dict[str, tuple[str, str, str]] = {
    "syntax": ("x = 1\nclass Mine(:\n", "Mine", r"mine\.py, line 2, does not import: SyntaxError"),
    "raises": ("import os\nraise KeyError('RANK')", "Mine", r"mine\.py, line 2, does not import: KeyError: 'RANK'"),
    "missing module": ("import no_such_module_", "Mine", r"mine\.py, line 1, does not import: ModuleNotFoundError"),
    "exits": ("import sys\n\nsys.exit(0)", "Mine", r"mine\.py, line 3, does not import: SystemExit: 0"),
    "skips": (
        "class Skipped(BaseException): pass\nraise Skipped('no')",
        "Mine",
        r"mine\.py, line 2, does not import: Skipped: no",
    ),
    "skips when made": (
        "class Skipped(BaseException): pass\nclass Mine:\n    def __init__(self): raise Skipped('no')",
        "Mine",
        r":Mine cannot be made without arguments: Skipped: no",
    ),
    "no such class": (GOOD, "Yours", r"has no 'Yours'; it defines Mine"),
    "nothing": ("", "Mine", r"has no 'Mine'$"),
    "arguments": ("class Mine:\n    def __init__(self, x): pass", "Mine", r":Mine cannot be made without arguments"),
    "no name": ("class Mine:\n    def per_token_logps(self, m, g): ...", "Mine", r":Mine: no name: give it a non-"),
    "empty name": (GOOD.replace('"mine"', '""'), "Mine", r":Mine: no name"),
    "a number for a name": (GOOD.replace('"mine"', "3"), "Mine", r":Mine: no name"),
    "no method": ("class Mine:\n    name = 'mine'", "Mine", r":Mine: mine: no method per_token_logps\(model, groups\)"),
    "a module, not a subject": ("import math as Mine", "Mine", r":Mine: no name"),
    "layout": (GOOD.replace('name = "mine"', 'name = "mine"; layout = "padded"'), "Mine", r"layout is 'padded'"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_no_subject_is_refused_with_what_is_wrong(write: Write, name: str) -> None:
    source, attribute, message = SPOILT[name]
    with pytest.raises(SelectionError, match=message) as caught:
        select_subject(f"{write(source)}:{attribute}")
    assert "mine" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.py:Mine", "subject file absent.py: there is no such file"),
        ("no_such_package_.module:Mine", "subject no_such_package_.module does not import: ModuleNotFoundError"),
        ("json:", "subject json has no ''"),
        (":Mine", "subject  does not import: ValueError"),
    ],
)
def test_what_is_not_there_is_said_to_be_absent(name: str, message: str) -> None:
    with pytest.raises(SelectionError, match=f"^{re.escape(message)}"):
        select_subject(name)


def test_a_planted_fault_is_a_subject_by_its_name() -> None:
    assert select_subject("fault:causal-mask-only").name == "fault:causal-mask-only"
    assert select_subject("fault:none").name == "fault:none"


def test_an_unknown_fault_gives_the_nearest_names() -> None:
    with pytest.raises(ValueError, match=r"unknown fault 'causal-mask': did you mean .*causal-mask-only"):
        select_subject("fault:causal-mask")

"""A run is shared among processes only where that is safe, and among as many as have work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import verify
from verify import jobs
from verify.jobs import choose_num_processes, why_one_process
from verify.subject import Subject
from verify.subjects.packed import PACKED_SUBJECTS

ROOT = Path(verify.__file__).resolve().parents[1]
SAFE: Mapping[str, Any] = {"device": "cpu", "large": False, "fresh": True}


@pytest.mark.parametrize(
    ("asked", "pieces", "threads", "expected"),
    [
        (None, 100, 1, 8),
        (None, 100, 4, 4),
        (None, 100, 32, 1),
        (None, 11, 1, 2),
        (None, 1, 1, 1),
        (3, 100, 16, 3),
        (3, 2, 1, 2),
        (64, 100, 1, 64),
    ],
)
def test_as_many_as_cores_and_work_allow_or_as_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, pieces: int, threads: int, expected: int
) -> None:
    monkeypatch.setattr(jobs, "_usable_cores", lambda: 16)
    assert choose_num_processes(asked, num_pieces=pieces, num_threads=threads, obstacle="") == expected


def test_several_where_it_has_to_be_one_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="--jobs 2: it is Monday; give --jobs 1, or leave it out"):
        choose_num_processes(2, num_pieces=9, num_threads=1, obstacle="it is Monday")
    assert choose_num_processes(1, num_pieces=9, num_threads=1, obstacle="it is Monday") == 1
    assert choose_num_processes(None, num_pieces=9, num_threads=1, obstacle="it is Monday") == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "^$"),
        ({"device": "cuda:0"}, "only a run on the CPU"),
        ({"large": True}, "a large model"),
        ({"fresh": False}, "torch was loaded before"),
    ],
)
def test_what_stands_against_forks_is_named(changed: Mapping[str, Any], reason: str) -> None:
    assert re.search(reason, why_one_process(PACKED_SUBJECTS, **{**SAFE, **changed}))


def test_subjects_of_third_parties_run_in_one_process(third_party: Callable[[str], Subject]) -> None:
    assert "is not one of ours" in why_one_process([*PACKED_SUBJECTS, third_party("ByHand")], **SAFE)


def test_where_cuda_is_in_use_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "only a run on the CPU" in why_one_process(PACKED_SUBJECTS, **SAFE)


def _program(*arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "verify", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "PYTHONWARNINGS": "error::ResourceWarning"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stderr
    assert "Traceback" not in done.stderr


def _without_times(file: Path) -> str:
    """The text of a result without what differs between any two runs; the order of all else counts."""
    result = json.loads(file.read_text(encoding="utf-8"))
    for name in ("timing", "created_utc", "command"):
        del result[name]
    return json.dumps(result)


SMALL_CHECK = (
    "check", "--case", "balanced", "--case", "two-groups", "--layers", 1, "--variation",
    "padded-left", "--dtype", "float32", "--dtype", "float64", "--subject", "dense-sdpa", "--subject", "split",
    "--subject", "fault:causal-mask-only",
)  # fmt: skip
SMALL_FAULTS = (
    "faults", "--case", "balanced", "--case", "two-groups", "--fault", "causal-mask-only", "--fault",
    "jittery-query-gradients", "--fault", "sum-over-groups", "--dtype", "float32",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "file"), [(SMALL_CHECK, "record.json"), (SMALL_FAULTS, "kill-matrix.json")], ids=["check", "faults"]
)
def test_a_result_is_the_same_with_any_number_of_processes(
    arguments: tuple[object, ...], file: str, tmp_path: Path
) -> None:
    for num_processes in (1, 3):
        out = tmp_path / str(num_processes)
        _program(*arguments, "--jobs", num_processes, "--quiet", "--out", out)
        assert json.loads((out / file).read_text(encoding="utf-8"))["timing"]["num_processes"] == num_processes
    assert _without_times(tmp_path / "1" / file) == _without_times(tmp_path / "3" / file)

"""``packparity report``: in an interpreter that has no torch, and with one message for what cannot be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
RECORD = RESULTS / "qwen3-0.6b-synthetic"
PROGRAM = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "peft", "safetensors", "reference_impl", "packed_impl"}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
runpy.run_module("verify", run_name="__main__")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", PROGRAM, "report", *arguments]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_record_is_shown_and_written_again_where_torch_is_not_installed(tmp_path: Path) -> None:
    done = run(str(RECORD), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"record.json", "report.md", "report.html", "junit.xml"}


def test_two_records_are_compared_where_torch_is_not_installed(tmp_path: Path) -> None:
    done = run(str(RESULTS / "qwen3-0.6b-h4"), str(RECORD / "record.json"), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "policy.oracle.factor 2.0 3.0" in words
    assert "verdicts of" in words
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.md"]


def test_families_are_shown_and_written_again_where_torch_is_not_installed(tmp_path: Path) -> None:
    done = run(str(RESULTS / "hf-position-ids"), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "A no-mask: 115 isolate" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"families.json", "families.md", "families.html"}
    source = RESULTS / "hf-position-ids" / "families.json"
    assert (tmp_path / "families.json").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "error: "),
        ("", "the JSON ends before it is complete"),
        ('{"kind": "poem"}', "a 'poem'; give a record of packparity check"),
        ('{"kind": "kill-matrix", "schema_version": 1}', "this program reads a kill-matrix of version"),
        ('{"schema_version": 2}', "not a valid record: "),
        ('{"schema_version": 9}', "this program reads versions"),
    ],
)
def test_a_bad_file_is_one_message_and_status_2(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    done = run(str(path))
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert message in line
    assert "result.json" in line
    assert "Traceback" not in done.stderr

"""However the process of a run ends, only a status that the run handed over counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import verify
from verify.cli.supervision import names_foreign_code, supervised

ROOT = Path(verify.__file__).resolve().parents[1]

RUNS = {
    "returns": ("return 1", (1, "")),
    "returns zero": ("return 0", (0, "")),
    "exits past everything": ("os._exit(0)", (3, "ended with status 0 before the run was over: does a subject call")),
    "is killed": ("os.kill(os.getpid(), 9)", (3, "was ended by SIGKILL before the run was over; out of memory?")),
    "crashes": ("os.abort()", (3, "was ended by SIGABRT before the run was over")),
    "raises": ("raise KeyError('x')", (3, "ended with status 1 before the run was over")),
    "leaves a process behind and exits": (
        "\n    if os.fork() == 0:\n        time.sleep(20)\n    os._exit(0)",
        (3, "ended with status 0 before the run was over"),
    ),
}

SCRIPT = """
import os, sys, time
from verify.cli.supervision import EndedEarlyError, supervised
def run():
    {body}
try:
    sys.exit(supervised(run))
except EndedEarlyError as error:
    sys.stderr.write(str(error))
    sys.exit(3)
"""


@pytest.mark.parametrize("name", RUNS)
def test_only_a_status_that_was_handed_over_counts(name: str) -> None:
    body, (status, message) = RUNS[name]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, timeout=15,
    ) if "behind" not in name else _run_in_a_session(body)  # fmt: skip
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert time.monotonic() - start < 15, "what the run left behind is not waited for"


def _run_in_a_session(body: str) -> subprocess.CompletedProcess[str]:
    """The same, with standard error in a file: a pipe would be held open by what is left behind."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)], cwd=ROOT, stderr=write, start_new_session=True
    )
    os.close(write)
    status = process.wait(timeout=15)
    os.set_blocking(read, False)
    text = os.read(read, 10_000).decode()
    os.close(read)
    os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess([], status, "", text)


def test_a_signal_to_the_parent_reaches_the_run() -> None:
    body = "print('running', flush=True); time.sleep(30); return 0"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"running\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 3
        assert b"was ended by SIGTERM" in process.stderr.read()


def test_with_torch_loaded_the_run_takes_place_here() -> None:
    import torch  # noqa: F401

    assert supervised(os.getpid) == os.getpid()


def test_foreign_code_is_told_by_its_colon() -> None:
    assert names_foreign_code(["check", "--subject", "file.py:Mine"])
    assert names_foreign_code(["check", "--subject=pkg.mod:Mine"])
    assert not names_foreign_code(["check", "--subject", "split", "--json"])


def test_a_subject_that_ends_the_process_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\nclass Mine:\n    name = 'mine'\n    def per_token_logps(self, model, groups): os._exit(0)\n",
        encoding="utf-8",
    )
    options = ("--layers", "1", "--case", "balanced", "--variation", "eager", "--quiet")
    done = subprocess.run(
        [sys.executable, "-m", "verify", "check", *options, "--subject", f"{tmp_path}/mine.py:Mine"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("packparity: nothing was proven: EndedEarlyError: the process of the run ended with")
    assert done.stderr.count("\n") == 1


def test_what_lies_above_the_call_runs_once() -> None:
    script = """
import sys
from verify.cli.supervision import supervised
try:
    status = supervised(lambda: 1)
finally:
    print("done")
sys.exit(status)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=15
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "done\n", "")


def test_a_rank_ends_with_its_status_whatever_an_interpreter_that_is_torn_down_would_do() -> None:
    program = (
        "import atexit, os, sys\nfrom verify.cli import app\nos.environ['RANK'] = '1'\nsys.modules['torch'] = sys\n"
        "atexit.register(os.abort)\nprint('a verdict')\napp._leave(1)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (1, "a verdict\n", "")

"""``packparity calibrate`` on three runs of one and two cases: through a process of its own, and interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import verify
from reports.calibration import BatchRecord, CalibrationRecord
from reports.calibration_store import CALIBRATION_FILES, read_calibration
from verify.calibration import run
from verify.calibration.journal import JOURNAL_FILE
from verify.cli.app import app

ROOT = Path(verify.__file__).resolve().parents[1]
SMALL = ("--cases", "4", "--seed", "6", "--quiet")
"""One case in float64, two in float32, one in bfloat16."""


def figures(record: CalibrationRecord) -> dict[str, Any]:
    """All but when and how long."""
    return record.model_dump(exclude={"command", "created_utc", "processor_s"})


def calibrate(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["calibrate", *map(str, arguments)])
    return done.exit_code, done.output if done.exception is None else f"{done.output}{done.exception}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration by two processes."""
    out = tmp_path_factory.mktemp("calibration")
    done = subprocess.run(
        [sys.executable, "-m", "verify", "calibrate", *SMALL, "--out", str(out), "--jobs", "2"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "PASS: 4 random cases of pairs in 3 runs of the gate" in done.stdout
    return out


def test_honest_subjects_are_within_their_budgets_and_faults_beyond(finished: Path) -> None:
    record = read_calibration(finished)
    assert (record.num_cases, record.num_batches, record.verdict) == (4, 3, "PASS")
    for dtype in ("float64", "float32", "bfloat16"):
        honest = record.distribution("honest", dtype)
        assert honest is not None
        assert 0 < honest.outermost < 1
    for dtype in ("float64", "float32"):
        fault = record.distribution("fault", dtype)
        assert fault is not None
        assert fault.outermost > 1


def test_everything_is_written(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {*CALIBRATION_FILES, JOURNAL_FILE}
    assert len((finished / JOURNAL_FILE).read_text(encoding="utf-8").splitlines()) == 1 + 3


def test_an_interrupted_run_goes_on_to_the_figures_of_one_that_was_not(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process here, two there; stopped in the second batch, and in the middle of writing its line."""
    measured: list[int] = []
    measure = run.measure_batch

    def until_interrupted(seed: int, number: int, *rest: Any) -> BatchRecord:
        if number == 1 and not measured.count(1):
            measured.append(1)
            raise KeyboardInterrupt
        measured.append(number)
        return measure(seed, number, *rest)

    monkeypatch.setattr(run, "measure_batch", until_interrupted)
    status, output = calibrate(*SMALL, "--out", tmp_path)
    assert status == 130
    assert f"what was measured is in {tmp_path / JOURNAL_FILE}; --resume goes on" in output
    assert {path.name for path in tmp_path.iterdir()} == {JOURNAL_FILE}
    with (tmp_path / JOURNAL_FILE).open("a", encoding="utf-8") as journal:
        journal.write('{"number":1,"dtype":"flo')
    status, output = calibrate(*SMALL, "--out", tmp_path, "--resume", "--json")
    assert status == 0
    assert measured == [0, 1, 1, 2]
    assert json.loads(output)["num_cases"] == 4
    assert figures(read_calibration(tmp_path)) == figures(read_calibration(finished))


def test_a_finished_run_can_be_summarised_again_in_part(finished: Path, tmp_path: Path) -> None:
    """The first batch alone, from the journal, without measuring anything."""
    (tmp_path / JOURNAL_FILE).write_bytes((finished / JOURNAL_FILE).read_bytes())
    status, _ = calibrate("--cases", 1, "--seed", 6, "--quiet", "--resume", "--out", tmp_path)
    assert status == 0
    record = read_calibration(tmp_path)
    assert (record.num_batches, list(record.largest_honest)) == (1, ["float64"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "float16"], "unknown dtype 'float16': give float64, float32, bfloat16"),
        (["--resume"], "--resume: there is no"),
        (["--policy", "nowhere.toml"], "policy nowhere.toml: cannot be read"),
    ],
)
def test_a_bad_request_is_refused_with_one_message(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["calibrate", "--out", str(tmp_path), *arguments])
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--cases", "0"], ["--jobs", "0"], ["--seed", "-1"], []])
def test_an_option_out_of_range_and_no_folder_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    out = ["--out", str(tmp_path)] if arguments else []
    assert CliRunner().invoke(app, ["calibrate", *arguments, *out]).exit_code == 2


def test_a_false_alarm_fails_the_command(finished: Path, tmp_path: Path) -> None:
    """The journal of a run in which an honest result was twice over budget."""
    lines = (finished / JOURNAL_FILE).read_text(encoding="utf-8").splitlines()
    batch = json.loads(lines[2])
    batch["results_by_verdict"]["honest"] = {
        **batch["results_by_verdict"]["honest"],
        "PASS": batch["results_by_verdict"]["honest"]["PASS"] - 1,
        "FAIL": 1,
    }
    (tmp_path / JOURNAL_FILE).write_text("\n".join([lines[0], lines[1], json.dumps(batch), lines[3], ""]))
    status, output = calibrate(*SMALL, "--out", tmp_path, "--resume")
    assert status == 1
    assert "1 honest results are over budget: false alarms" in output
    assert read_calibration(tmp_path).verdict == "FAIL"


def test_no_worker_outlives_a_program_that_was_killed(tmp_path: Path) -> None:
    """A worker that only waits is started by a parent that dies without a word; the pipe closes when it has ended."""
    program = (
        "import multiprocessing, os, time\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from verify.parent_process import end_with_the_parent\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    pool = ProcessPoolExecutor(1, mp_context=context, initializer=end_with_the_parent)\n"
        "    pool.submit(os.getpid).result()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(program, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # communicate() returns only when every process that holds the pipe is gone.
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE) as parent:
        parent.communicate(timeout=120)
    assert parent.returncode == -9

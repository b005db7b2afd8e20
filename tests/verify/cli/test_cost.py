"""``packparity cost``: exit status, files, and one line for whatever is wrong; on one rank and on two."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import verify
from reports.cost_record import CostRecord
from reports.cost_store import COST_FILES, read_cost
from verify.cli import app
from verify.cli.cost import _kind_of_device, _told_how_to_go_on
from verify.cost.journal import JOURNAL_FILE
from verify.sharded.board import RankLostError

ROOT = Path(verify.__file__).resolve().parents[1]
SHORT = ("--model", "tiny", "--layers", 1, "--paths", "padded,split", "--steps", 2, "--regime", "balanced", "--quiet")


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """``packparity cost`` in this process, which is no rank."""

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["packparity", "cost", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capsys.readouterr()
        status = ended.value.code
        return Done(status if isinstance(status, int) else -1, captured.out, captured.err)

    return call


def test_a_run_is_measured_written_and_shown(cli: Cli, tmp_path: Path) -> None:
    done = cli(*SHORT, "--pairs", 1, "--held-out", 2, "--out", tmp_path)
    assert (done.status, done.err) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {*COST_FILES, JOURNAL_FILE}
    record = read_cost(tmp_path)
    assert [path.name for path in record.measured_paths] == ["padded", "split"]
    assert "split (unverified): over the best unpacked path; balanced:" in done.out
    again = cli(*SHORT, "--pairs", 1, "--held-out", 2, "--out", tmp_path)
    assert again.status == 2
    assert "give --resume to go on with it, or another --out" in again.err


EARLY = [
    (("--preset", "nope"), "unknown preset 'nope': give one of mechanism, response-long, ultrafeedback, headline"),
    (("--preset", "mechanism", "--scale", "small"), "unknown scale 'small': give full or tiny"),
    (("--scale", "tiny"), "--scale tiny goes with --preset NAME"),
    (("--preset", "headline", "--scale", "tiny"), "--preset headline needs --data FILE"),
    (("--paths", "nope"), "unknown path 'nope': give one of padded, unpadded, padding-free, dense, sparse, split"),
    (("--paths", "split,nope", "--ranks", "2"), "unknown path 'nope'"),
    (("--regime", "nope"), "unknown regime 'nope': give some of prompt-long, balanced, response-long"),
    (("--model", "tinyy"), "unknown model 'tinyy'"),
    (("--dtype", "half"), "unknown dtype 'half'"),
    (("--sweep", "64,x"), "--sweep: 'x' is not a whole number"),
    (("--data", "none.jsonl"), "none.jsonl"),
    (("--tokenizer", "none"), "--tokenizer goes with --data FILE"),
    (("--resume",), "--resume goes with --out DIR"),
    (("--seed", "-1"), "--seed -1"),
    (("--device", "tpu"), "--device tpu"),
]


@pytest.mark.parametrize(("arguments", "message"), EARLY)
def test_what_is_wrong_is_said_in_one_line_before_torch_is_loaded(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setitem(sys.modules, "verify.cost.request", None)  # as whatever loads torch
    done = cli(*arguments)
    assert done.status == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "mechanism"), "is for 2 ranks, and there are 1"),
        (("--parity", "nowhere"), "cannot read nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli(*arguments)
    assert done.status == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_a_parity_record_of_another_model_is_refused_with_the_field(cli: Cli) -> None:
    kept = Path(__file__).resolve().parents[3] / "docs" / "results" / "qwen3-0.6b-synthetic"
    done = cli(*SHORT, "--parity", kept)
    assert done.status == 2
    assert "it says nothing about this run; make one with: packparity check --model tiny" in done.err


@pytest.mark.slow
def test_two_ranks_train_as_one_process_on_the_same_pairs(cli: Cli, tmp_path: Path) -> None:
    """Each rank's batch is one pair of the two that the one process has, and gradients are averaged over ranks."""
    learning: tuple[Any, ...] = ("--lr", 1e-3, "--held-out", 2)
    alone = cli(*SHORT, *learning, "--pairs", 2, "--out", tmp_path / "one")
    assert alone.status == 0
    arguments = [*SHORT, *learning, "--pairs", 1, "--ranks", 2, "--out", tmp_path / "two"]
    done = subprocess.run(
        [sys.executable, "-m", "verify", "cost", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = (read_cost(tmp_path / name) for name in ("one", "two"))
    for path in ("padded", "split"):
        ends = [_end(record, path) for record in (one, two)]
        assert ends[1] == pytest.approx(ends[0], abs=2e-4)
        assert ends[0] != pytest.approx(_end(one, path, when="start"), abs=2e-3), "nothing was learned"
    assert {step.rank for step in two.workloads[0].steps} == {0, 1}
    assert two.memory_measure == "resident"
    figures = two.workloads[0].figures_of("split")
    assert figures is not None
    steps = [s for s in two.workloads[0].steps if s.path == "split" and s.phase == "measured"]
    peaks = [sum(s.peak_bytes or 0 for s in steps if s.round == number) for number in (0, 1)]
    assert figures.peak_bytes == max(peaks)


def _end(record: CostRecord, path: str, when: str = "end") -> list[float]:
    held = record.workloads[0].held_out_of(path, when)
    assert held is not None
    return held.margins


@pytest.mark.parametrize(
    ("device", "preset", "scale", "kind"),
    [
        (None, None, "full", "cpu"),
        ("cuda:1", None, "full", "cuda"),
        (None, "mechanism", "full", "cuda"),
        (None, "mechanism", "tiny", "cpu"),
        ("cpu", "mechanism", "full", "cpu"),
    ],
)
def test_ranks_compute_on_what_the_preset_says(device: str | None, preset: str | None, scale: str, kind: str) -> None:
    assert _kind_of_device(device, preset, scale) == kind


def test_a_lost_rank_is_told_with_the_way_to_go_on_where_there_is_a_journal(tmp_path: Path) -> None:
    def lost(out: Path | None) -> str:
        with pytest.raises(RankLostError) as raised, _told_how_to_go_on(out):
            raise RankLostError("rank 1 of 2 was ended by SIGKILL")
        return str(raised.value)

    assert lost(None) == lost(tmp_path) == "rank 1 of 2 was ended by SIGKILL"
    (tmp_path / JOURNAL_FILE).touch()
    assert lost(tmp_path) == f"rank 1 of 2 was ended by SIGKILL; what was measured is in {tmp_path}: --resume goes on"

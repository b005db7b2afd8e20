"""The run that is prepared for a machine with a GPU: its command lines are valid, and what it says was read."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from reports.store import parse_json
from verify.cli import option_checks
from verify.cli.app import app
from verify.cli.cost_checks import check_cost_options
from verify.cost.presets import preset_named
from verify.environment import float32_products
from verify.on_a_gpu import __main__ as program
from verify.on_a_gpu import recompilation
from verify.on_a_gpu.__main__ import main
from verify.on_a_gpu.outcome import read_outcome
from verify.on_a_gpu.plan import CASES, FULL, REHEARSAL, SHAPE_FILE, Scale, Step, plan
from verify.on_a_gpu.running import SUMMARY_FILE, Done, exit_status, run_steps, write_summary

KEPT = Path(__file__).resolve().parents[2] / "docs" / "results" / "qwen3-0.6b-synthetic" / "record.json"


@pytest.mark.parametrize("scale", [FULL, REHEARSAL], ids=["full", "rehearsal"])
def test_every_command_line_parses_and_names_what_there_is(scale: Scale, tmp_path: Path) -> None:
    (tmp_path / SHAPE_FILE).write_text(scale.shape_file_text, encoding="utf-8")
    steps = plan(tmp_path, scale)
    assert {step.kind for step in steps} == {"check", "recompilation", "cost", "forecast"}
    for step in steps:
        module, rest = step.arguments[1], list(step.arguments[2:])
        if module == "verify.on_a_gpu.recompilation":
            assert recompilation.options().parse_args(rest).out == tmp_path / step.name
            continue
        given = _parsed(rest)
        assert given["out"] == tmp_path / step.name
        preset = given.get("preset")
        model = preset_named(preset).defaults(given["scale"]).model if preset else given["model"]
        option_checks.check_model(model, given.get("layers"))
        if step.kind == "check":
            option_checks.check_subjects(given["subject"], ())
            option_checks.check_dtypes(given["dtype"])
            option_checks.check_case_names(given["case"])
        if step.kind == "cost":
            checked = ("preset", "scale", "model", "layers", "data", "tokenizer", "dtype", "device", "threads")
            check_cost_options(**{name: given[name] for name in checked}, paths=(), regimes=(), seeds=())


def _parsed(arguments: list[str]) -> dict[str, Any]:
    """The options of a command, with nothing run."""
    command = typer.main.get_command(app).commands[arguments[0]]  # type: ignore[attr-defined]
    with command.make_context(arguments[0], arguments[1:]) as context:
        return dict(context.params)


def test_a_step_that_was_not_reached_or_left_no_record_proves_nothing(tmp_path: Path) -> None:
    def step(name: str, code: str) -> Step:
        return Step(name=name, kind="check", what="a test", arguments=("-c", code), longest_s=0.5)

    steps = (step("silent", "pass"), step("slow", "import time; time.sleep(60)"))
    done = run_steps(steps, tmp_path, 30.0, lambda text: None)
    assert [each.found.verdict for each in done] == ["ERROR", "NOT_REACHED"]
    assert "holds no record.json" in done[0].found.says
    late = run_steps(steps, tmp_path, 5.0, lambda text: None)
    assert [each.found.verdict for each in late] == ["NOT_REACHED"] * 2
    assert exit_status(["PASS", "MEASURED", "NOT_APPLICABLE"]) == 0
    assert exit_status(["PASS", "NOT_REACHED"]) == 3
    assert exit_status(["FAIL", "NOT_REACHED"]) == 1


def test_what_was_found_is_kept_before_the_next_step_begins(tmp_path: Path) -> None:
    def summary() -> list[str]:
        return [step["verdict"] for step in parse_json(tmp_path / SUMMARY_FILE)["steps"]]

    def keep(done: Sequence[Done]) -> None:
        write_summary(tmp_path, done, rehearsal=True, budget_s=60.0)
        seen.append(summary())
        if len(seen) == 2:
            raise KeyboardInterrupt

    seen: list[list[str]] = []
    steps = [
        Step(name=name, kind="check", what="a test", arguments=("-c", "pass"), longest_s=30.0) for name in ("a", "b")
    ]
    with pytest.raises(KeyboardInterrupt):
        run_steps(steps, tmp_path, 60.0, lambda text: None, keep)
    assert seen == [["NOT_REACHED", "NOT_REACHED"], ["ERROR", "NOT_REACHED"]]
    assert summary() == seen[-1]


def test_a_time_limit_from_outside_ends_the_step_and_leaves_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "pid"
    code = f"import os, time; open({str(child)!r}, 'w').write(str(os.getpid()) + '.'); time.sleep(60)"
    step = Step(name="slow", kind="check", what="a test", arguments=("-c", code), longest_s=30.0)
    monkeypatch.setattr(program, "plan", lambda out, scale: (step,))

    def end_when_it_runs() -> None:
        while not (child.exists() and child.read_text(encoding="utf-8").endswith(".")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=end_when_it_runs, daemon=True)
    thread.start()
    try:
        status = main(["--rehearse", "--out", str(tmp_path / "out")])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert status == 130
    assert "summary.json has what was done" in capsys.readouterr().err
    assert parse_json(tmp_path / "out" / SUMMARY_FILE)["steps"][0]["verdict"] == "NOT_REACHED"
    with pytest.raises(ProcessLookupError):
        os.kill(int(child.read_text(encoding="utf-8")[:-1]), 0)


@pytest.mark.parametrize(
    ("products", "verdict"),
    [("float32, as products show", "PASS"), ("TF32 or less: products are rounded", "FAIL"), ("", "INCONCLUSIVE")],
)
def test_a_pass_in_float32_counts_only_where_tf32_was_off(tmp_path: Path, products: str, verdict: str) -> None:
    content = parse_json(KEPT)
    content["environment"]["float32_products"] = products
    (tmp_path / "record.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_outcome("check", tmp_path, needs_float32=True).verdict == verdict
    assert read_outcome("check", tmp_path, needs_float32=False).verdict == "PASS"


def test_products_that_are_rounded_to_bfloat16_are_told_from_those_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert float32_products("cpu").startswith("float32, ")
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: product(a.bfloat16().float(), b)  # as a device that multiplies so
    )  # fmt: skip
    assert float32_products("cpu").startswith("TF32 or less")


@pytest.mark.parametrize(
    ("graphs", "verdict"),
    [
        ([2, 3, 4, 4, 4, 4, 4, 4], "PASS"),
        ([2, 3, 4, 4, 4, 4, 5, 5], "FAIL"),
        ([1, 2, 3, 4, 5, 6, 7, 8], "FAIL"),
        ([2, 4, 6], "FAIL"),
        ([0] * 8, "INCONCLUSIVE"),
        ([], "INCONCLUSIVE"),
    ],
)
def test_compilation_that_does_not_come_to_an_end_fails(graphs: list[int], verdict: str) -> None:
    assert recompilation.judged(graphs, 8)[0] == verdict


def test_shapes_differ_and_the_lengths_around_a_block_are_judged() -> None:
    shapes = recompilation.drawn_shapes(48, seed=0)
    assert len(set(shapes)) == 48
    totals = [sum(map(sum, lengths)) for lengths in shapes]
    assert min(totals) < 256 < 1024 < max(totals)
    assert {"length-127", "length-128", "length-129"} < set(CASES)


def test_a_bad_request_is_one_line_with_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "new")]) == 2
    assert "torch sees no GPU: --rehearse" in capsys.readouterr().err
    (tmp_path / "old").write_text("", encoding="utf-8")
    assert main(["--rehearse", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "give a new folder" in captured.err
    assert captured.err.count("\n") == 1
    assert main(["--list", "--out", str(tmp_path)]) == 0
    assert "--preset mechanism" in capsys.readouterr().out


def test_listed_commands_write_the_file_that_they_read_and_cite_the_record_as_a_run_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a folder"
    assert main(["--list", "--out", str(out)]) == 0
    assert not out.exists()
    first, *commands = capsys.readouterr().out.splitlines()
    subprocess.run(["/bin/sh", "-c", first], check=True)
    assert json.loads((out / SHAPE_FILE).read_text(encoding="utf-8")) == json.loads(FULL.shape_file_text)
    (cost,) = (shlex.split(command) for command in commands if " cost " in command)
    assert cost[-2:] == ["--parity", str(out / "parity-8b-bfloat16")]

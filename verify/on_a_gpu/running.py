"""Running the steps one after another, none beyond its time, and what is left for the next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verify.on_a_gpu.outcome import PROVES_NOTHING, Beside, Found, Verdict, forecast_beside_measured, read_outcome
from verify.on_a_gpu.plan import Step

SUMMARY_FILE = "summary.json"
LEAST_S = 20.0
"""With less time than this left, a step is not begun: loading torch takes a good part of it."""
_TO_END_S = 10.0
_STATUS = {"PASS": 0, "MEASURED": 0, "NOT_APPLICABLE": 0, "FAIL": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A step, and what became of it."""

    step: Step
    command: tuple[str, ...]
    seconds: float
    found: Found


def run_steps(
    steps: Sequence[Step],
    out: Path,
    budget_s: float,
    say: Callable[[str], None],
    keep: Callable[[Sequence[Done]], None] = lambda done: None,
) -> list[Done]:
    """Run the steps in their order.

    Args:
        steps: The steps.
        out: The folder of the run.
        budget_s: Seconds for all of them.
        say: Told what is begun and what was found.
        keep: Given all steps before the first and after each, those to come as NOT_REACHED: a machine that is taken
            away in between leaves what was found.

    Returns:
        All of them; those that time did not suffice for as NOT_REACHED.
    """
    started, done = time.monotonic(), list[Done]()
    keep([_to_come(step) for step in steps])
    for step in steps:
        left = budget_s - (time.monotonic() - started)
        command = _command(step, out, done)
        say(f"{step.name}: {step.what}")
        if left < LEAST_S:
            found = Found(verdict="NOT_REACHED", says=f"{max(left, 0):.0f} of {budget_s:g} s were left")
            done.append(Done(step=step, command=command, seconds=0.0, found=found))
        else:
            done.append(_run(step, command, out, min(left, step.longest_s)))
        found = done[-1].found
        say(f"  {found.verdict} ({done[-1].seconds:.0f} s): {found.says}")
        for text in found.not_applicable:
            say(f"  NOT_APPLICABLE: {text}")
        keep([*done, *map(_to_come, steps[len(done) :])])
    return done


def _to_come(step: Step) -> Done:
    found = Found(verdict="NOT_REACHED", says="the run ended before it was done")
    return Done(step=step, command=step.arguments, seconds=0.0, found=found)


def _command(step: Step, out: Path, done: Sequence[Done]) -> tuple[str, ...]:
    """What Python runs, with the record that it cites where there is one to cite."""
    passed = any(each.step.name == step.cites and each.found.verdict == "PASS" for each in done)
    return (*step.arguments, "--parity", str(out / step.cites)) if passed else step.arguments


def _run(step: Step, command: Sequence[str], out: Path, limit_s: float) -> Done:
    folder = out / step.name
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "160"},
            start_new_session=True,  # so that whatever it starts ends with it
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    seconds = time.monotonic() - started
    if status is None:
        found = Found(verdict="NOT_REACHED", says=f"ended after {limit_s:.0f} s, see {folder / 'log.txt'}")
    else:
        found = _believed(status, read_outcome(step.kind, folder, needs_float32=step.needs_float32), folder)
    return Done(step=step, command=tuple(command), seconds=seconds, found=found)


def _believed(status: int, found: Found, folder: Path) -> Found:
    """A record of a PASS counts only where the command ended as one that passed."""
    if status == 0 or found.verdict not in ("PASS", "MEASURED"):
        return found
    return Found(verdict="ERROR", says=f"exit status {status}, see {folder / 'log.txt'}", machine=found.machine)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it and all that it has started; an interrupt first, so that what it keeps is whole."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TO_END_S)


def write_summary(out: Path, done: Sequence[Done], *, rehearsal: bool, budget_s: float) -> dict[str, Any]:
    """Write everything in one file: the machine, every command and what it found, forecast beside measured."""
    machine = next((dict(each.found.machine) for each in done if each.found.machine), {})
    summary: dict[str, Any] = {
        "kind": "on-a-gpu",
        "rehearsal": rehearsal,
        "machine": machine,
        "budget_s": budget_s,
        "seconds": round(sum(each.seconds for each in done), 1),
        "steps": [
            {
                "name": each.step.name,
                "what": each.step.what,
                "command": ["python", *each.command],
                "verdict": each.found.verdict,
                "says": each.found.says,
                "not_applicable": list(each.found.not_applicable),
                "seconds": round(each.seconds, 1),
            }
            for each in done
        ],
        "forecast_beside_measured": [asdict(row) for row in forecast_beside_measured(out)],
    }
    place = out / SUMMARY_FILE
    aside = place.with_suffix(".partial")
    aside.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(place)
    return summary


def beside_lines(rows: Sequence[Beside]) -> list[str]:
    """Forecast beside measured, a line for each path."""
    lines = []
    for row in rows:
        memory = "memory not measured"
        if row.measured_peak_bytes:
            over = row.forecast_peak_bytes / row.measured_peak_bytes
            memory = f"peak {row.measured_peak_bytes:,} bytes, forecast {row.forecast_peak_bytes:,} ({over:.3f})"
        lines.append(
            f"{row.workload}, {row.path}: {memory}; step {row.measured_s:.4f} s, at least {row.least_s:.4f} s forecast"
        )
    return lines


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """0 where all was done that this machine can do; 1: something FAILs; 3: something was not proven or not reached."""
    if any(verdict in PROVES_NOTHING for verdict in verdicts):
        return 1 if "FAIL" in verdicts else 3
    return max((_STATUS[verdict] for verdict in verdicts), default=3)

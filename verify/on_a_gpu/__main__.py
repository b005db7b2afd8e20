"""``python -m verify.on_a_gpu``: everything that only a GPU can show, in at most ten minutes (docs/on-a-gpu.md)."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from verify.on_a_gpu.outcome import forecast_beside_measured
from verify.on_a_gpu.plan import FULL, REHEARSAL, SHAPE_FILE, Step, plan
from verify.on_a_gpu.running import SUMMARY_FILE, Done, beside_lines, exit_status, run_steps, write_summary


def options() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser("python -m verify.on_a_gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a new folder for every record and summary.json")
    parser.add_argument(
        "--rehearse", action="store_true", help="the same steps on a CPU, on tiny models: nothing is said of a GPU"
    )
    parser.add_argument(
        "--seconds", type=float, help=f"for all steps; {FULL.budget_s:g}, of a rehearsal {REHEARSAL.budget_s:g}"
    )
    parser.add_argument("--list", action="store_true", help="show the commands and run none")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps.

    Returns:
        Exit status: 0 all passed; 1 a FAIL; 2 a bad request; 3 something not proven or not reached; 130 interrupted.
    """
    given = options().parse_args(arguments)
    out, scale = given.out.absolute(), REHEARSAL if given.rehearse else FULL
    steps = plan(out, scale)
    if given.list:
        for line in listed_commands(steps, out, scale.shape_file_text):
            _say(line)
        return 0
    problem = _problem(out, rehearsal=given.rehearse)
    if problem:
        print(f"on_a_gpu: error: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    out.mkdir(parents=True, exist_ok=True)
    (out / SHAPE_FILE).write_text(scale.shape_file_text, encoding="utf-8")
    budget_s = scale.budget_s if given.seconds is None else given.seconds
    signal.signal(signal.SIGTERM, _interrupt)

    def keep(done: Sequence[Done]) -> None:
        write_summary(out, done, rehearsal=given.rehearse, budget_s=budget_s)

    try:
        done = run_steps(steps, out, budget_s, _say, keep)
    except KeyboardInterrupt:
        print(f"on_a_gpu: interrupted: {out / SUMMARY_FILE} has what was done until then", file=sys.stderr)  # noqa: T201
        return 130
    for line in beside_lines(forecast_beside_measured(out)):
        _say(line)
    unreached = [each for each in done if each.found.verdict == "NOT_REACHED"]
    for each in unreached:
        _say(f"not reached: {shlex.join(['python', *each.command])}")
    _say(f"{out / SUMMARY_FILE}" + (": a rehearsal, which says nothing of a GPU" if given.rehearse else ""))
    return exit_status([each.found.verdict for each in done])


def listed_commands(steps: Sequence[Step], out: Path, shape_text: str) -> Iterator[str]:
    """Lines for a shell: the file that forecasts read, then every step; what cites a record takes it to be a PASS.

    Args:
        steps: The steps.
        out: The folder of the run.
        shape_text: Of the file.
    """
    folder, file = (shlex.quote(str(path)) for path in (out, out / SHAPE_FILE))
    yield f"mkdir -p {folder} && printf %s {shlex.quote(json.dumps(json.loads(shape_text)))} > {file}"
    for step in steps:
        cited = ("--parity", str(out / step.cites)) if step.cites else ()
        yield shlex.join(["python", *step.arguments, *cited])


def _problem(out: Path, *, rehearsal: bool) -> str:
    """What is wrong with a request; "" for nothing."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        return f"--out {out} is there already: give a new folder, so that no record of another run is taken for one"
    if rehearsal:
        return ""
    import torch

    return "" if torch.cuda.is_available() else "torch sees no GPU: --rehearse runs the same steps on a CPU"


def _interrupt(number: int, frame: object) -> None:
    """What a time limit sends is an interrupt like any: steps run in sessions of their own, and would outlive it."""
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main())

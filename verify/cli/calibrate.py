"""``packparity calibrate``: how far honest and faulty subjects are from their budgets."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

_HELP_CASES = "Random cases over all dtypes, at least."
_HELP_OUT = "Folder for calibration.json, .md, .svg and the journal that --resume reads."
_HELP_JOBS = "Processes, each with one thread; the figures do not depend on it."

_HELP_KIND = "Kind of all cases: pairs, groups, examples, or objectives (groups under every preference objective)."
_INTERRUPTED = 130
"""As for every command that is interrupted."""


def calibrate(
    out: Annotated[Path, typer.Option(help=_HELP_OUT)],
    cases: Annotated[int, typer.Option(help=_HELP_CASES, min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.", min=0)] = 0,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float64, float32 or bfloat16; repeatable. All of them.")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="Kind of all cases: pairs, groups, examples, or objectives (groups under each preference objective)."
        ),
    ] = "pairs",
    jobs: Annotated[int, typer.Option(help=_HELP_JOBS, min=1)] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the journal in --out.")] = False,
    policy: Annotated[Path | None, typer.Option(help="Tolerance policy (TOML) instead of the default.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Measure error / budget of honest subjects and of planted faults over thousands of random cases.

    The factors of the tolerance policy are chosen from it. FAIL (exit status 1) if an honest result is over budget.
    Needs hypothesis, the extra "calibrate" of the package.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from rich.console import Console

    from reports.calibration_store import CALIBRATION_FILES, calibration_json, write_calibration
    from reports.calibration_terminal import print_calibration
    from reports.store import check_writable, discard_results
    from verify.calibration.run import CalibrationOptions, prepare_calibration, run_calibration
    from verify.cli.progress import show_progress
    from verify.verdict import Verdict, exit_status

    options = CalibrationOptions(
        out=out, cases=cases, seed=seed, dtypes=tuple(dtype or ()), kind=kind, jobs=jobs, resume=resume, policy=policy
    )
    check_writable(out, CALIBRATION_FILES)
    prepared = prepare_calibration(options)
    discard_results(out, CALIBRATION_FILES)  # an interrupted run must not leave the results of another behind
    try:
        with show_progress(quiet) as progress:
            record = run_calibration(prepared, progress, command=["packparity", *sys.argv[1:]])
    except KeyboardInterrupt:
        typer.echo(
            f"packparity: interrupted: what was measured is in {prepared.journal.path}; --resume goes on", err=True
        )
        raise typer.Exit(_INTERRUPTED) from None
    written = write_calibration(record, out)
    if json:
        sys.stdout.write(calibration_json(record))
    else:
        console = Console()
        print_calibration(record, console)
        for path in written:
            console.print(str(path), highlight=False, soft_wrap=True)
    raise typer.Exit(exit_status(Verdict(record.verdict)))

"""``packparity faults``: plant every fault of the catalogue and show what catches it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from verify.cli.imports import HELP_JOBS, heavy_imports


def faults(
    fault: Annotated[list[str] | None, typer.Option(help="Only these: a name, or file.py:NAME of your own.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="Only these cases. May be given several times.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="float64, float32 or bfloat16; repeatable.")] = None,
    cases_per_fault: Annotated[int, typer.Option(help="Cases that each fault is run on, the smallest.", min=1)] = 3,
    jobs: Annotated[int | None, typer.Option(help=HELP_JOBS, min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, adapters and cases.", min=0)] = 0,
    policy: Annotated[Path | None, typer.Option(help="Tolerance policy (TOML) instead of the default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for kill-matrix.json, .md, .html and .xml (JUnit).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the kill matrix as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Prove that the checks can fail: plant known faults in the packed step, one at a time.

    FAIL (exit status 1) if a fault survives, or if a harmless change is flagged. float64 and float32, the default, are
    where the checks are sharp; some faults are smaller than the rounding of bfloat16.
    """
    from verify.cli.app import STARTED

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from reports.kill_matrix_store import KILL_MATRIX_FILES
    from reports.store import check_writable
    from verify.cli import option_checks

    option_checks.check_files_of("fault", fault or ())
    option_checks.check_case_names(case or ())
    option_checks.check_dtypes(dtype or ())
    option_checks.check_numbers(seed=seed)
    option_checks.check_policy(policy)
    if out is not None:
        check_writable(out, KILL_MATRIX_FILES)

    with heavy_imports() as fresh:
        from rich.console import Console

        from reports.kill_matrix_store import kill_matrix_json, write_kill_matrix
        from reports.kill_matrix_terminal import print_kill_matrix
        from reports.store import discard_results
        from verify.cli.progress import show_progress
        from verify.cli.results import written_and_shown
        from verify.fault_request import FaultOptions, prepare_faults
        from verify.fault_run import run_faults
        from verify.verdict import Verdict, exit_status

    options = FaultOptions(
        faults=tuple(fault or ()),
        cases=tuple(case or ()),
        dtypes=tuple(dtype or ()),
        cases_per_fault=cases_per_fault,
        jobs=jobs,
        fresh=fresh,
        seed=seed,
        policy=policy,
    )
    import_s = time.perf_counter() - STARTED
    prepared = prepare_faults(options)
    if out is not None:
        discard_results(out, KILL_MATRIX_FILES)  # an interrupted run must not leave the results of another behind
    with show_progress(quiet) as progress:
        matrix = run_faults(
            prepared, progress, command=["packparity", *sys.argv[1:]], started=STARTED, import_s=import_s
        )
    console = Console()

    def show() -> None:
        if json:
            sys.stdout.write(kill_matrix_json(matrix))
        else:
            print_kill_matrix(matrix, console)

    written = written_and_shown(lambda: write_kill_matrix(matrix, out) if out is not None else (), show)
    if not json:
        for path in written:
            console.print(str(path), highlight=False, soft_wrap=True)
    raise typer.Exit(exit_status(Verdict(matrix.verdict)))

"""``packparity families``: which model families isolate packed sequences, called in which way."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

_HELP_FAMILY = "A model type of transformers, e.g. qwen3; repeatable. All that have a causal LM."


def families(
    family: Annotated[list[str] | None, typer.Option(help=_HELP_FAMILY)] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and examples.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="Time for one family.", min=1)] = 60.0,
    out: Annotated[Path | None, typer.Option(help="Folder for families.json, .md and .html.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Pack examples with restarted position_ids into rows of stock models, and see which of them leak.

    Tiny random weights, no download. Exit status 1 if a family lets one example see another when it is called without a
    mask and with use_cache=False, which is the call that transformers isolates; 3 if one could not be measured.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from reports.families_store import FAMILIES_FILES, families_json, write_families
    from reports.store import check_writable, discard_results
    from verify.cli import option_checks
    from verify.cli.imports import heavy_imports

    option_checks.check_numbers(seed=seed)
    if out is not None:
        check_writable(out, FAMILIES_FILES)
    with heavy_imports():
        from rich.console import Console

        from reports.families_terminal import print_families
        from verify.cli.progress import show_progress
        from verify.families.names import select_families
        from verify.families.run import run_families
        from verify.families.verdict import families_verdict
        from verify.verdict import exit_status

    chosen = select_families(family or ())
    if out is not None:
        discard_results(out, FAMILIES_FILES)  # an interrupted run must not leave the results of another behind
    with show_progress(quiet) as progress:
        record = run_families(
            chosen, seed=seed, seconds_per_family=seconds, progress=progress, command=["packparity", *sys.argv[1:]]
        )
    written = write_families(record, out) if out is not None else ()
    if json:
        sys.stdout.write(families_json(record))
    else:
        console = Console()
        print_families(record, console)
        for path in written:
            console.print(str(path), highlight=False, soft_wrap=True)
    raise typer.Exit(exit_status(families_verdict(record)))

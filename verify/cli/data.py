"""``packparity data``: can a preference file be packed, and would it pay?"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from verify.cli.data_results import HELP_MODEL, HELP_RANKS, HELP_ROW_LIMIT, HELP_STEP, show


def data(
    file: Annotated[Path, typer.Argument(help="Preference pairs or groups, JSONL or Parquet.")],
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of the tokenizer; without it, characters.")] = None,
    chars_per_token: Annotated[float | None, typer.Option(help="Estimate tokens as characters / this.")] = None,
    model: Annotated[str, typer.Option(help=HELP_MODEL)] = "qwen3-8b",
    row_limit: Annotated[int | None, typer.Option(help=HELP_ROW_LIMIT, min=1)] = None,
    max_length: Annotated[int | None, typer.Option(help="Length at which your trainer truncates.", min=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Leave out longer rows (they are counted).", min=3)] = None,
    ranks: Annotated[int, typer.Option(help=HELP_RANKS, min=1, max=4096)] = 8,
    groups_per_rank: Annotated[int, typer.Option(help=HELP_STEP, min=1, max=4096)] = 4,
    max_broken: Annotated[float, typer.Option(help="Share of rows that may break the precondition.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of sample and sampling order.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for data-report.json, .md and .html.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Survey a preference file: what breaks the shared-prompt precondition, lengths, and what packing would save.

    Exit status 0: packing can be used (whether it pays is in the report); 1: it cannot; 2: bad input.
    """
    from verify.cli.app import STARTED

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from reports.data_store import check_can_be_written
    from verify.cli import option_checks

    option_checks.check_model(model, layers=None)
    option_checks.check_numbers(seed=seed)
    if out is not None:
        check_can_be_written(out)

    from verify.cli.progress import show_progress
    from verify.data_report import DataOptions, prepare_data, report_data
    from verify.packing_plan.records import PlanOptions

    options = DataOptions(
        file=file,
        tokenizer=tokenizer,
        chars_per_token=chars_per_token,
        max_length=max_length,
        max_tokens=max_tokens,
        max_broken=max_broken,
        plan=PlanOptions(model=model, row_limit=row_limit, num_ranks=ranks, groups_per_rank=groups_per_rank, seed=seed),
    )
    prepared = prepare_data(options)
    with show_progress(quiet) as progress:

        def reading(share: float, rows: int, elapsed_s: float) -> None:
            rate = f"{rows / elapsed_s:,.0f}" if elapsed_s else "?"
            progress(round(100 * share), 100, f"{rows:,} rows, {rate} rows/s")

        report = report_data(prepared, reading, command=["packparity", *sys.argv[1:]], started=STARTED)
    show(report, out, as_json=json)

"""``packparity simulate``: what packing would save on lengths that are drawn, without a data file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from verify.cli.data_results import HELP_MODEL, HELP_RANKS, HELP_ROW_LIMIT, HELP_STEP, show

_HELP_NAME = "prompt-long, balanced, response-long (192/64, 128/128, 64/192 tokens) or log-normal."
_RESPONSES = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MOST_RESPONSES = 1024


def simulate(
    distribution: Annotated[str, typer.Argument(help=_HELP_NAME)],
    responses: Annotated[str, typer.Option(help="Responses to a prompt: 2, or 2-8 for groups of uneven size.")] = "2",
    groups: Annotated[int, typer.Option(help="Groups to draw.", min=1, max=100_000)] = 8192,
    model: Annotated[str, typer.Option(help=HELP_MODEL)] = "qwen3-8b",
    row_limit: Annotated[int | None, typer.Option(help=HELP_ROW_LIMIT, min=1)] = None,
    ranks: Annotated[int, typer.Option(help=HELP_RANKS, min=1, max=4096)] = 8,
    groups_per_rank: Annotated[int, typer.Option(help=HELP_STEP, min=1, max=4096)] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the lengths and of the sampling order.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for data-report.json, .md and .html.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Predict what packing saves on lengths drawn from a named distribution; on those of a file: packparity data.

    Exit status 0: predicted; 2: bad request.
    """
    from verify.cli.app import STARTED

    fewest_and_most = _responses(responses)
    from reports.data_store import check_can_be_written
    from verify.cli import option_checks
    from verify.packing_plan.distributions import named_distribution

    named_distribution(distribution)
    option_checks.check_model(model, layers=None)
    option_checks.check_numbers(seed=seed)
    if out is not None:
        check_can_be_written(out)

    from verify.distribution_report import report_distribution
    from verify.packing_plan.records import PlanOptions

    plan = PlanOptions(model=model, row_limit=row_limit, num_ranks=ranks, groups_per_rank=groups_per_rank, seed=seed)
    report = report_distribution(
        distribution,
        plan,
        num_groups=groups,
        responses=fewest_and_most,
        command=["packparity", *sys.argv[1:]],
        started=STARTED,
    )
    show(report, out, as_json=json)


def _responses(text: str) -> tuple[int, int]:
    """Fewest and most, of a text such as "2" or "2-8"."""
    found = _RESPONSES.fullmatch(text)
    fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= fewest <= most <= _MOST_RESPONSES:
        raise ValueError(f"--responses {text}: give a number from 1 to {_MOST_RESPONSES}, or two such as 2-8")
    return fewest, most

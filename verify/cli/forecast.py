"""``packparity forecast``: what a training step takes on a machine that is not here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from verify.forecast.limits import MOST_PAIRS

_HELP_MODEL = (
    "A published name (qwen3-0.6b to qwen3-32b, llama-3.2-1b), a JSON file of a shape or a transformers config, or the "
    "folder of one."
)

_HELP_PATHS = "Of padded, unpadded, padding-free, dense, sparse, split, with commas between; all unless given."


def forecast(
    model: Annotated[str, typer.Option(help=_HELP_MODEL)] = "qwen3-8b",
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.", min=1)] = 512,
    response: Annotated[int, typer.Option(help="Tokens of each response.", min=1)] = 512,
    pairs: Annotated[int, typer.Option(help="Pairs of each rank, in one step.", min=1, max=MOST_PAIRS)] = 4,
    paths: Annotated[str, typer.Option(help=_HELP_PATHS)] = "",
    ranks: Annotated[int, typer.Option(help="Ranks that share the parameters (FSDP2).", min=1, max=4096)] = 1,
    device: Annotated[str, typer.Option(help="gb10, h200, or cpu: this machine, measured in a second.")] = "gb10",
    memory_gib: Annotated[
        float | None, typer.Option(help="GiB of it that a step may take.", min=0.001, max=2**20)
    ] = None,
    train: Annotated[str, typer.Option(help="lora, or all parameters.")] = "lora",
    lora_rank: Annotated[int, typer.Option(help="Rank of the adapters.", min=1, max=4096)] = 8,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Activation checkpointing.")] = False,
    dtype: Annotated[str, typer.Option(help="Of the weights: bfloat16, or float32 on a CPU.")] = "bfloat16",
    longest: Annotated[bool, typer.Option(help="Search for the longest pair that fits.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for forecast.json, .md and .html.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Forecast FLOPs, peak memory and least time of a DPO step, from shapes alone: no weights, no GPU.

    Exit status 0: some path fits; 1: none does, and by how much is said; 2: bad input.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from reports.forecast_store import FORECAST_FILES, forecast_json, write_forecast
    from reports.store import check_writable, discard_results
    from verify.cli import option_checks
    from verify.cli.imports import heavy_imports
    from verify.forecast.limits import NO_FLEX_ON_CPU, check_batch

    option_checks.check_model(model, layers=None)
    option_checks.check_dtypes([dtype])
    chosen = option_checks.checked_paths(paths)
    if (device, chosen) == ("cpu", ("sparse",)):
        raise ValueError(NO_FLEX_ON_CPU)
    check_batch(prompt=prompt, response=response, pairs=pairs)
    if out is not None:
        check_writable(out, FORECAST_FILES)
    with heavy_imports():
        from rich.console import Console

        from reports.forecast_terminal import print_forecast
        from verify.cli.progress import show_progress
        from verify.forecast.request import Training, checked_trained
        from verify.forecast.run import ForecastRequest, run_forecast
        from verify.models.lora import LoraSpec

    request = ForecastRequest(
        model=model,
        training=Training(
            train=checked_trained(train),
            checkpointing=checkpointing,
            lora=LoraSpec(rank=lora_rank, alpha=2 * lora_rank),
        ),
        dtype=dtype,
        prompt=prompt,
        response=response,
        pairs=pairs,
        ranks=ranks,
        device=device,
        usable_gib=memory_gib,
        paths=chosen,
        search=longest,
    )
    if out is not None:
        discard_results(out, FORECAST_FILES)  # an interrupted run must not leave the results of another behind
    with show_progress(quiet) as progress:
        record = run_forecast(request, progress, command=["packparity", *sys.argv[1:]])
    written = write_forecast(record, out) if out is not None else ()
    if json:
        sys.stdout.write(forecast_json(record))
    else:
        console = Console()
        print_forecast(record, console)
        for file in written:
            console.print(str(file), highlight=False, soft_wrap=True)
    raise typer.Exit(0 if record.fitting else 1)

"""``packparity preflight``: on the cluster, before it is spent: GO or NO-GO."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from verify.forecast.limits import MOST_PAIRS

_HELP_MODEL = "A name as for packparity check, a checkpoint folder, or a JSON file of a shape."
_HELP_RANKS = "Start so many ranks on this machine; without it, ranks are started by torchrun or Slurm."
_HELP_DEVICE = "cpu or cuda; cuda where torch sees a GPU."
_HELP_BACKEND = (
    "A backend that must be shown to run: dense-sdpa, flex or split; repeatable. Any one of them if not given."
)
_HELP_DTYPE = "float64, float32, bfloat16, or mixed-bfloat16 (float32 shards, bfloat16 passes)."
_HELP_TIMEOUT = "Seconds that a probe may take; a rank that hangs for longer ends the run."
_HELP_SILENCE = "Seconds without a sign of life after which a rank counts as lost."
_HELP_ORACLE = "Layers on which the float64 oracle runs; as many as fit if not given."


def preflight(
    model: Annotated[str, typer.Option(help=_HELP_MODEL)] = "tiny",
    layers: Annotated[int | None, typer.Option(help="Depth of the model; published if not given.", min=1)] = None,
    oracle_layers: Annotated[int | None, typer.Option(help=_HELP_ORACLE, min=1)] = None,
    dtype: Annotated[str, typer.Option(help=_HELP_DTYPE)] = "float32",
    backend: Annotated[list[str] | None, typer.Option(help=_HELP_BACKEND)] = None,
    device: Annotated[str | None, typer.Option(help=_HELP_DEVICE)] = None,
    profile: Annotated[str, typer.Option(help="Machine whose settings are checked: none or gb10.")] = "none",
    data: Annotated[Path | None, typer.Option(help="Preference pairs, JSONL or Parquet.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of the tokenizer; needed with --data.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Leave out longer pairs (they are counted).", min=3)] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt of the planned step.", min=1)] = 512,
    response: Annotated[int, typer.Option(help="Tokens of each response of the planned step.", min=1)] = 512,
    pairs: Annotated[int, typer.Option(help="Pairs of each rank in the planned step.", min=1, max=MOST_PAIRS)] = 1,
    ranks: Annotated[int | None, typer.Option(help=_HELP_RANKS, min=1)] = None,
    timeout: Annotated[float, typer.Option(help=_HELP_TIMEOUT, min=1)] = 600.0,
    silence: Annotated[float, typer.Option(help=_HELP_SILENCE, min=2)] = 30.0,
    seed: Annotated[int, typer.Option(help="Seed of weights, adapters and pairs.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for preflight.json, .md and .html, from rank 0.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Say GO or NO-GO before a cluster is spent: the same versions, kernels that run, sharded parity, memory.

    Start it on every rank (torchrun, Slurm), or with --ranks 2 on one machine. Exit status, the same on every rank:
    0 GO; 1 NO-GO, something is wrong; 2 the request is wrong; 3 NO-GO, nothing was proven.
    """
    from verify.cli.app import STARTED

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from verify.cli import option_checks
    from verify.cli.preflight_checks import check_preflight_options, rank_arguments
    from verify.forecast.limits import check_batch
    from verify.sharded.ranks import place_from_environment, start_local_ranks

    check_preflight_options(
        model=model, layers=layers, dtype=dtype, backends=backend or (), profile=profile, device=device
    )
    option_checks.check_numbers(seed=seed)
    check_batch(prompt=prompt, response=response, pairs=pairs)
    if (data is None) != (tokenizer is None):
        raise ValueError("--data and --tokenizer go together: give both or neither")
    place = place_from_environment()
    if place is None:
        if ranks is None:
            raise ValueError("preflight needs ranks: start it with torchrun or Slurm, or give --ranks 2")
        if ranks < 2:
            raise ValueError(f"--ranks {ranks}: at least 2 are needed, one has nobody to agree with")
        raise typer.Exit(start_local_ranks(rank_arguments(sys.argv[1:]), ranks, _ALL_PROBES * timeout))
    if ranks is not None:
        raise ValueError(f"--ranks {ranks} where RANK and WORLD_SIZE are set: the ranks are started already")
    if place.world_size < 2:
        raise ValueError("world size 1: preflight needs 2 ranks or more (torchrun --nproc-per-node 2, or --ranks 2)")

    from verify.cli.imports import heavy_imports

    with heavy_imports():
        import torch
        from rich.console import Console

        from reports.preflight_record import PreflightRecord
        from reports.preflight_store import PREFLIGHT_FILES, preflight_json, write_preflight
        from reports.preflight_terminal import print_preflight
        from reports.store import OutputError, discard_results
        from verify.cli.progress import say_line, show_progress
        from verify.cli.results import written_and_shown
        from verify.preflight.options import PreflightOptions
        from verify.preflight.session import Draft, run_preflight

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    placed = place_from_environment(chosen)
    assert placed is not None
    options = PreflightOptions(
        model=model,
        layers=layers,
        oracle_layers=oracle_layers,
        dtype=dtype,
        backends=tuple(backend or ()),
        device=chosen,
        data=data,
        tokenizer=tokenizer,
        max_tokens=max_tokens,
        prompt=prompt,
        response=response,
        pairs=pairs,
        profile=profile,
        seed=seed,
        timeout_s=timeout,
        silence_s=silence,
        out=out,
    )

    def finish(record: PreflightRecord) -> None:
        console = Console()

        def show() -> None:
            if json:
                sys.stdout.write(preflight_json(record))
            else:
                print_preflight(record, console)
            sys.stdout.flush()

        written = written_and_shown(lambda: write_preflight(record, out) if out is not None else (), show)
        if not json:
            for path in written:
                console.print(str(path), highlight=False, soft_wrap=True)

    if placed.rank == 0 and out is not None:
        with suppress(OutputError):  # which is said once the ranks have met, so that all of them end with it
            discard_results(out, PREFLIGHT_FILES)  # an interrupted run must not leave the results of another behind
    draft = Draft(options, placed, command=["packparity", *sys.argv[1:]], started=STARTED)
    with show_progress(quiet or placed.rank != 0) as progress:
        record = run_preflight(draft, progress, finish, say=lambda line: None if quiet else say_line(line))
    raise typer.Exit(0 if record.decision == "GO" else 1 if record.is_wrong else 3)


_ALL_PROBES = 12
"""Probes, each of which may take as long as --timeout says, before local ranks are given up."""

"""``packparity cost``: what training steps cost, packed and unpacked, measured."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from verify.cli.imports import heavy_imports

if TYPE_CHECKING:
    from verify.cost.request import CostOptions
    from verify.cost.run import RunPlace
    from verify.sharded.ranks import RankPlace

_HELP_PATHS = (
    "Some of padded, unpadded, padding-free (nothing shared), dense, sparse, split (packed), with commas; all."
)
_HELP_PRESET = (
    "Workloads and options of a recorded run: mechanism, response-long, ultrafeedback, headline (docs/cost.md)."
)
_HELP_SCALE = "full (qwen3-8b on two GB10 nodes) or tiny (a laptop); goes with --preset."
_HELP_MODEL = "Model, named as in check; small (2 layers, hidden 256) unless a preset says otherwise."
_HELP_PARITY = (
    "Folder or record of packparity check, for several ranks of packparity sharded, on the same model, versions, "
    "dtype and subjects."
)
_HELP_OUT = "Folder for cost.json, .md, .html, two figures, and the journal that --resume reads."
_HELP_RANKS = "Start so many ranks on this machine, sharded by FSDP2; under torchrun they are there."
_HELP_SWEEP = "Sequence lengths to run beside, half prompt: --sweep 128,256,512."
_RANKS_TIMEOUT_S = 24 * 3600.0
_COLLECTIVE_TIMEOUT_S = 600.0
_INTERRUPTED = 130


def cost(
    preset: Annotated[str | None, typer.Option(help=_HELP_PRESET)] = None,
    scale: Annotated[str, typer.Option(help=_HELP_SCALE)] = "full",
    model: Annotated[str | None, typer.Option(help=_HELP_MODEL)] = None,
    layers: Annotated[int | None, typer.Option(help="Cut the depth; the report says so.", min=1)] = None,
    paths: Annotated[str | None, typer.Option(help=_HELP_PATHS)] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each path in each workload; 5.", min=1)] = None,
    regime: Annotated[
        list[str] | None, typer.Option(help="prompt-long, balanced, response-long; repeatable. All of them.")
    ] = None,
    sweep: Annotated[str | None, typer.Option(help=_HELP_SWEEP)] = None,
    data: Annotated[Path | None, typer.Option(help="Draw pairs, or their lengths, from a preference file.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of the tokenizer that counts --data.")] = None,
    max_prompt: Annotated[int | None, typer.Option(help="Longest prompt that is drawn, in tokens.", min=1)] = None,
    max_response: Annotated[int | None, typer.Option(help="Longest response that is drawn.", min=1)] = None,
    pairs: Annotated[int | None, typer.Option(help="Pairs of a step on each rank; 2.", min=1)] = None,
    held_out: Annotated[int | None, typer.Option(help="Pairs held out of each workload; 8.", min=0)] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed; repeatable: the regimes once for each.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float64, float32 or bfloat16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch.", min=1)] = None,
    ranks: Annotated[int | None, typer.Option(help=_HELP_RANKS, min=1)] = None,
    lr: Annotated[float, typer.Option(help="Learning rate of AdamW on the adapters.")] = 5e-6,
    beta: Annotated[float, typer.Option(help="DPO's beta.")] = 0.1,
    parity: Annotated[Path | None, typer.Option(help=_HELP_PARITY)] = None,
    out: Annotated[Path | None, typer.Option(help=_HELP_OUT)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the journal in --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Measure training steps (policy, reference, backward, optimizer) of packed and unpacked paths, side by side.

    Exit status 0 when everything was measured; 2: bad input; 3: nothing was proven (a clock stepped back, a path that
    is not what it claims to be). An interrupted run goes on with --resume.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from reports.cost_store import COST_FILES
    from reports.store import check_writable
    from verify.cli.cost_checks import check_cost_options
    from verify.sharded.ranks import place_from_environment, start_local_ranks

    check_cost_options(
        preset=preset,
        scale=scale,
        model=model,
        layers=layers,
        paths=_listed(paths),
        regimes=regime or (),
        seeds=seed or (),
        data=data,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        threads=threads,
    )
    lengths = None if sweep is None else tuple(_whole("--sweep", text) for text in _listed(sweep))
    if resume and out is None:
        raise ValueError("--resume goes with --out DIR: that is where the journal of the run is")
    place = place_from_environment(_kind_of_device(device, preset, scale))
    if ranks is not None and ranks > 1 and place is None:
        try:
            with _told_how_to_go_on(out):
                status = start_local_ranks(sys.argv[1:], ranks, _RANKS_TIMEOUT_S)
            raise typer.Exit(status)
        except KeyboardInterrupt:
            _say_interrupted(out)
            raise typer.Exit(_INTERRUPTED) from None
    if out is not None:
        check_writable(out, COST_FILES)

    with heavy_imports():
        from verify.cost.request import CostOptions

    options = CostOptions(
        preset=preset,
        scale=scale,
        model=model,
        layers=layers,
        paths=_listed(paths),
        steps=steps,
        regimes=tuple(regime or ()),
        sweep=lengths,
        data=data,
        tokenizer=tokenizer,
        max_prompt=max_prompt,
        max_response=max_response,
        pairs=pairs,
        held_out=held_out,
        seeds=tuple(seed or ()),
        dtype=dtype,
        device=device,
        threads=threads,
        ranks=ranks,
        lr=lr,
        beta=beta,
        parity=parity,
        out=out,
        resume=resume,
    )
    _measure(options, place, as_json=json, quiet=quiet)


def _measure(options: CostOptions, place: RankPlace | None, *, as_json: bool, quiet: bool) -> NoReturn:
    from rich.console import Console

    from reports.cost_store import cost_json, write_cost
    from reports.cost_terminal import print_cost
    from verify.cli.app import STARTED
    from verify.cli.progress import show_progress
    from verify.cli.results import written_and_shown
    from verify.cost.ranks import DistributedRanks, OneRank
    from verify.cost.request import prepare_cost
    from verify.cost.run import RunPlace, run_cost
    from verify.sharded.ranks import process_group

    num_ranks = place.world_size if place else 1
    is_first = place is None or place.rank == 0
    prepared = prepare_cost(options, num_ranks=num_ranks, device=place.device if place else None)
    out = options.out
    try:
        with show_progress(quiet or not is_first) as progress, _told_how_to_go_on(out):

            def run_place(ranks: OneRank | DistributedRanks) -> RunPlace:
                return RunPlace(ranks=ranks, progress=progress, command=["packparity", *sys.argv[1:]], started=STARTED)

            if place is None:
                record = run_cost(prepared, run_place(OneRank()))
            else:
                with process_group(place, _COLLECTIVE_TIMEOUT_S):
                    record = run_cost(prepared, run_place(DistributedRanks(place.rank, num_ranks)))
    except KeyboardInterrupt:
        if is_first:
            _say_interrupted(out)
        raise typer.Exit(_INTERRUPTED) from None
    if not is_first:
        raise typer.Exit(0)
    console = Console()

    def show() -> None:
        if as_json:
            sys.stdout.write(cost_json(record))
        else:
            print_cost(record, console)

    written = written_and_shown(lambda: write_cost(record, out) if out is not None else (), show)
    if not as_json:
        for path in written:
            console.print(str(path), highlight=False, soft_wrap=True)
    raise typer.Exit(0)


def _kind_of_device(device: str | None, preset: str | None, scale: str) -> str:
    """What ranks compute on: as given, or as the preset has it."""
    if device is None and preset is not None:
        from verify.cost.presets import preset_named

        device = preset_named(preset).defaults("tiny" if scale == "tiny" else "full").device
    return (device or "cpu").partition(":")[0]


@contextlib.contextmanager
def _told_how_to_go_on(out: Path | None) -> Iterator[None]:
    """Say of a rank that was lost where the others left what they had measured."""
    from verify.sharded.board import RankLostError

    try:
        yield
    except RankLostError as error:
        from verify.cost.journal import JOURNAL_FILE

        if out is None or not (out / JOURNAL_FILE).is_file():
            raise
        raise RankLostError(f"{error}; what was measured is in {out}: --resume goes on") from error


def _say_interrupted(out: Path | None) -> None:
    kept = "nothing was written" if out is None else f"what was measured is in {out}; --resume goes on"
    typer.echo(f"packparity: interrupted: {kept}", err=True)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{option}: {text!r} is not a whole number; give lengths with commas between them") from None

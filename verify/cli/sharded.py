"""``packparity sharded``: parity of the sharded step, under torchrun or on ranks that it starts itself."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

_HELP_RANKS = "Ranks to start on this machine; 2 unless given. Under torchrun there are as many as it starts."
_HELP_SUBJECT = "A built-in subject, package.module:Class or file.py:Class. May be given several times."
_HELP_DTYPE = "float64, float32, bfloat16 or mixed-bfloat16 (float32 shards, bfloat16 passes); repeatable."
_HELP_FULL = "All packed subjects, more cases, every objective, all dtypes."
_HELP_PAIRS = "Pairs to draw from --data, more than ranks; two for each rank and one more unless given."
_HELP_TRAIN = "What is trained: lora (adapters), or all (every weight; the frozen policy is another model, or cached)."
_HELP_OBJECTIVE = (
    "Objective of cases that compare responses, as packparity check names them; reward-model for a reward model."
)
_HELP_REFERENCE = (
    "The frozen policy: adapters-off, frozen-adapter, separate-model or cached; as packparity check takes it."
)
_HELP_NLL = "Weight of the NLL of preferred responses; as published if not given (1 for rpo and groupdpo, else 0)."
_HELP_TIMEOUT = "Seconds that a rank waits for the slowest one before the run ends."
_LONGEST_RUN_S = 6 * 3600.0


def sharded(
    ranks: Annotated[int | None, typer.Option(help=_HELP_RANKS, min=1)] = None,
    model: Annotated[str, typer.Option(help="As packparity check takes it; tiny unless given.")] = "tiny",
    layers: Annotated[int | None, typer.Option(help="Cut the depth; the report says so.", min=1)] = None,
    data: Annotated[
        Path | None, typer.Option(help="Preference pairs, JSONL or Parquet, in place of our cases.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of the tokenizer; needed with --data.")] = None,
    pairs: Annotated[int | None, typer.Option(help=_HELP_PAIRS, min=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Leave out longer pairs (they are counted).", min=3)] = None,
    subject: Annotated[list[str] | None, typer.Option(help=_HELP_SUBJECT)] = None,
    backend: Annotated[list[str] | None, typer.Option(help="Our subjects of this backend only.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help=_HELP_DTYPE)] = None,
    case: Annotated[list[str] | None, typer.Option(help="Only these cases, beside the one that is probed.")] = None,
    full: Annotated[bool, typer.Option("--full", help=_HELP_FULL)] = False,
    objective: Annotated[str, typer.Option(help=_HELP_OBJECTIVE)] = "sigmoid",
    beta: Annotated[float, typer.Option(help="DPO's beta.")] = 0.1,
    label_smoothing: Annotated[float, typer.Option(help="Label smoothing, in [0, 0.45].")] = 0.0,
    nll_weight: Annotated[float | None, typer.Option(help=_HELP_NLL)] = None,
    train: Annotated[str, typer.Option(help=_HELP_TRAIN)] = "lora",
    reference: Annotated[str | None, typer.Option(help=_HELP_REFERENCE)] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda for the device of each local rank.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of weights, adapters and cases.", min=0)] = 0,
    policy: Annotated[Path | None, typer.Option(help="Tolerance policy (TOML) instead of the default.")] = None,
    timeout: Annotated[float, typer.Option(help=_HELP_TIMEOUT, min=1)] = 120.0,
    out: Annotated[Path | None, typer.Option(help="Folder for sharded.json, .md, .html, junit.xml.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Run a training step on a model sharded by FSDP2, and hold it against one process and the oracle.

    Each rank has its own groups, uneven in number and length. Without options: two ranks on this machine, a tiny
    Qwen3 with LoRA. Or: torchrun --standalone --nproc-per-node 2 -m verify sharded --out DIR.
    """
    from verify.cli.app import STARTED

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from reports.sharded_store import SHARDED_FILES
    from reports.store import check_writable
    from verify.cli import option_checks
    from verify.objective import run_objective
    from verify.sharded.ranks import STARTED_HERE, place_from_environment, start_local_ranks
    from verify.sharded.scenarios import check_precisions

    option_checks.check_model(model, layers)
    option_checks.check_subjects(subject or (), backend or ())
    trained, frozen = option_checks.checked_training(train, reference)
    run_objective(objective, beta=beta, label_smoothing=label_smoothing, nll_weight=nll_weight)
    option_checks.check_frozen_policy(objective, frozen)
    check_precisions(dtype or (), trained)
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: give cpu, or cuda for the device of each local rank")
    option_checks.check_numbers(seed=seed)
    option_checks.check_policy(policy)
    if data is not None and case:
        raise ValueError("give --data or --case, not both: each names the cases of the run")
    option_checks.check_data_options(data, tokenizer=tokenizer, pairs=pairs, max_tokens=max_tokens, cases_file=None)
    place = place_from_environment(device)
    if place is not None and ranks is not None and ranks != place.world_size:
        raise ValueError(f"--ranks {ranks} with WORLD_SIZE {place.world_size}: leave --ranks out under torchrun")
    world_size = place.world_size if place is not None else 2 if ranks is None else ranks
    if world_size < 2:
        raise ValueError("1 rank: a model is sharded over at least 2 (--ranks 2, or torchrun --nproc-per-node 2)")
    if out is not None and (place is None or place.rank == 0):
        check_writable(out, SHARDED_FILES)
    if place is None:
        raise typer.Exit(start_local_ranks(sys.argv[1:], world_size, _LONGEST_RUN_S))

    from verify.cli.imports import heavy_imports

    with heavy_imports():
        from verify.cli.progress import say_line, show_progress
        from verify.sharded.ranks import process_group
        from verify.sharded.request import ShardedOptions
        from verify.sharded.session import hand_over, run_session

    options = ShardedOptions(
        model=model,
        layers=layers,
        subjects=tuple(subject or ()),
        backends=tuple(backend or ()),
        precisions=tuple(dtype or ()),
        cases=tuple(case or ()),
        full=full,
        data=data,
        tokenizer=tokenizer,
        pairs=pairs,
        max_tokens=max_tokens,
        seed=seed,
        policy=policy,
        train=trained,
        objective=objective,
        beta=beta,
        label_smoothing=label_smoothing,
        nll_weight=nll_weight,
        reference=frozen,
    )
    # Subjects print as they like: that may not pass for the program's own output.
    with process_group(place, timeout) as enter, contextlib.redirect_stdout(sys.stderr):
        with show_progress(quiet or place.rank != 0) as progress:

            def begin(done: int, total: int, text: str) -> None:
                enter(text)
                progress(done, total, text)

            record = run_session(
                options,
                place,
                begin,
                (lambda line: None) if quiet or place.rank else say_line,
                arguments=sys.argv[1:],
                started=STARTED,
                started_here=STARTED_HERE in os.environ,
                out=out,
            )
        enter("handing over")
        status = hand_over(record, place, out=out, as_json=json)
    raise typer.Exit(status)

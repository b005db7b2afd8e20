"""``packparity check``: the parity gate."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from verify.cli.imports import HELP_JOBS, heavy_imports
from verify.cli.interrupts import interrupts_noted

_HELP_MODEL = (
    "tiny, tiny-qwen2, -llama, -mistral, -qwen3-moe; qwen3-0.6b, 1.7b, 4b, 8b, 14b, 32b, llama-3.2-1b (published "
    "config, seeded weights); small (2 layers, hidden 256); tiny-TYPE (a model type of transformers); a checkpoint "
    "folder; or a JSON file of a shape."
)
_HELP_SUBJECT = "A built-in subject, package.module:Class, file.py:Class or fault:NAME. May be given several times."

_HELP_OBJECTIVE = (
    "Objective of cases that compare responses: sigmoid, robust, hinge, ipo, sigmoid_norm, rpo, groupdpo-margin, "
    "groupdpo-mpo, groupdpo-softmax or groupdpo-all-pairs; or reward-model (a Bradley-Terry reward model)."
)
_HELP_TRAIN = "What is trained: lora (adapters), or all (every weight, no adapters)."
_HELP_REFERENCE = (
    "The frozen policy: adapters-off, frozen-adapter, separate-model or cached; by default the first, with --train all "
    "separate-model."
)
_HELP_NLL = "Weight of the NLL of preferred responses; as published if not given (1 for rpo and groupdpo, else 0)."
_HELP_ROUTERS = "Weight of the load balancing loss of a mixture of experts (router_aux_loss_coef); none if not given."
_HELP_FULL = (
    "All our packed subjects, and in all dtypes but autocast, unless you name some; about ten times the default's time."
)


def check(
    model: Annotated[str, typer.Option(help=_HELP_MODEL)] = "tiny",
    layers: Annotated[int | None, typer.Option(help="Cut the depth; the report says so.", min=1)] = None,
    data: Annotated[Path | None, typer.Option(help="Preference pairs, JSONL or Parquet.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of the tokenizer; needed with --data.")] = None,
    pairs: Annotated[int | None, typer.Option(help="Pairs to draw from --data, stratified by length.", min=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Leave out longer pairs (they are counted).", min=3)] = None,
    cases_file: Annotated[Path | None, typer.Option(help="Cases of your own, JSON; excludes --data.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="Only these cases. May be given several times.")] = None,
    subject: Annotated[list[str] | None, typer.Option(help=_HELP_SUBJECT)] = None,
    backend: Annotated[list[str] | None, typer.Option(help="Our subjects of this backend only.")] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float64, float32, bfloat16 or autocast-bfloat16; repeatable.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help=_HELP_FULL)] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Threads of torch; 1 for the tiny model.", min=1)] = None,
    jobs: Annotated[int | None, typer.Option(help=HELP_JOBS, min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, adapters, cases and sample.", min=0)] = 0,
    beta: Annotated[float, typer.Option(help="DPO's beta.")] = 0.1,
    label_smoothing: Annotated[float, typer.Option(help="Label smoothing, in [0, 0.45].")] = 0.0,
    objective: Annotated[str, typer.Option(help=_HELP_OBJECTIVE)] = "sigmoid",
    nll_weight: Annotated[float | None, typer.Option(help=_HELP_NLL)] = None,
    router_loss: Annotated[float | None, typer.Option(help=_HELP_ROUTERS)] = None,
    train: Annotated[str, typer.Option(help=_HELP_TRAIN)] = "lora",
    reference: Annotated[str | None, typer.Option(help=_HELP_REFERENCE)] = None,
    policy: Annotated[Path | None, typer.Option(help="Tolerance policy (TOML) instead of the default.")] = None,
    variation: Annotated[
        list[str] | None, typer.Option(help="Harmless variations of the unpacked path that set the noise floor.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for record.json, report.md, report.html, junit.xml.")] = None,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Reduce a failing case of each subject and dtype; a reproduction in --out.")
    ] = False,
    shrink_seconds: Annotated[
        float | None, typer.Option(help="Time that --shrink may take, in all; 60.", min=1)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Compare packed with unpacked preference training: log-probs, losses, rewards and every gradient.

    Without options: a tiny Qwen3 with sharp weights, most of our packed subjects (--full: all), no download, no GPU.

    Exit status 0: PASS; 1: FAIL; 2: bad request or input; 3: nothing was proven.
    """
    from verify.cli.app import STARTED

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from reports.store import check_writable
    from verify.cli import option_checks
    from verify.objective import run_objective

    option_checks.check_model(model, layers)
    option_checks.check_subjects(subject or (), backend or ())
    option_checks.check_dtypes(dtype or (), autocast=True)
    option_checks.check_variations(variation or ())
    option_checks.check_device_name(device)
    option_checks.check_numbers(seed=seed, threads=threads)
    if shrink_seconds is not None and not shrink:
        raise ValueError("--shrink-seconds goes with --shrink")
    trained, frozen = option_checks.checked_training(train, reference)
    run_objective(objective, beta=beta, label_smoothing=label_smoothing, nll_weight=nll_weight, router_loss=router_loss)
    option_checks.check_policy(policy)
    option_checks.check_data_options(
        data, tokenizer=tokenizer, pairs=pairs, max_tokens=max_tokens, cases_file=cases_file
    )
    if data is None and cases_file is None:
        option_checks.check_case_names(case or ())
    if out is not None:
        check_writable(out)

    with heavy_imports() as fresh:
        from rich.console import Console

        from reports.store import discard_results, record_json, write_reports
        from reports.terminal import print_record
        from verify.check_request import CheckOptions, prepare_check
        from verify.check_run import run_check, subjects_end_nothing
        from verify.cli.progress import show_progress
        from verify.cli.results import written_and_shown
        from verify.shrink.folder import discard_reproductions
        from verify.verdict import Verdict, exit_status

    options = CheckOptions(
        model=model,
        layers=layers,
        data=data,
        tokenizer=tokenizer,
        pairs=pairs,
        max_tokens=max_tokens,
        cases_file=cases_file,
        cases=tuple(case or ()),
        subjects=tuple(subject or ()),
        backends=tuple(backend or ()),
        dtypes=tuple(dtype or ()),
        full=full,
        variations=tuple(variation or ()),
        device=device,
        threads=threads,
        jobs=jobs,
        fresh=fresh,
        seed=seed,
        objective=objective,
        beta=beta,
        label_smoothing=label_smoothing,
        nll_weight=nll_weight,
        router_loss=router_loss,
        train=trained,
        reference=frozen,
        policy=policy,
        out=out,
        shrink=shrink,
        shrink_seconds=60.0 if shrink_seconds is None else shrink_seconds,
    )
    import_s = time.perf_counter() - STARTED
    # Subjects print and exit as they like: neither may pass for the program's own output or status.
    with contextlib.redirect_stdout(sys.stderr), subjects_end_nothing():
        prepared = prepare_check(options)
        if out is not None:
            out = out.resolve()
            discard_results(out)  # an interrupted run must not leave the results of another behind
            discard_reproductions(out)
        try:
            with show_progress(quiet) as progress:
                record = run_check(
                    prepared,
                    progress,
                    command=["packparity", *sys.argv[1:]],
                    started=STARTED,
                    import_s=import_s,
                    meanwhile=lambda: _import_for_the_end(written=out is not None),
                )
        except BaseException:
            if out is not None:
                discard_reproductions(out)  # of a run without a report
            raise
    console = Console()

    def show() -> None:
        if json:
            sys.stdout.write(record_json(record))
        else:
            print_record(record, console)

    written = written_and_shown(lambda: write_reports(record, out) if out is not None else (), show)
    if not json:
        for path in written:
            console.print(str(path), highlight=False, soft_wrap=True)
    raise typer.Exit(exit_status(Verdict(record.verdict)))


def _import_for_the_end(*, written: bool) -> None:
    """Import what a run ends with: a second for pictures, which nobody waits for while other processes work."""
    with interrupts_noted():
        if written:
            import reports.html  # noqa: F401

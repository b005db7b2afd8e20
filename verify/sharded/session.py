"""A run of ``packparity sharded`` within its process group: agreement, the run, the record, and handing it over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console

from reports.sharded_record import ShardedRecord
from reports.sharded_store import SHARDED_FILES, sharded_json, write_sharded
from reports.sharded_terminal import print_sharded
from reports.store import discard_results
from verify.check_cases import data_record
from verify.cli.results import written_and_shown
from verify.environment import read_environment
from verify.garbage import seldom_collected
from verify.sharded.agreement import check_same_data, check_same_start
from verify.sharded.checks import CHECKS
from verify.sharded.observe import all_gathered
from verify.sharded.planting import notes_on_not_planted
from verify.sharded.ranks import RankPlace
from verify.sharded.recording import ShardedFacts, record_sharded
from verify.sharded.request import ShardedOptions, prepare
from verify.sharded.run import ShardedRequest, run_sharded_parity
from verify.threads import torch_threads
from verify.verdict import Verdict, exit_status


def run_session(
    options: ShardedOptions,
    place: RankPlace,
    progress: Callable[[int, int, str], None],
    say: Callable[[str], None],
    *,
    arguments: Sequence[str],
    started: float,
    started_here: bool,
    out: Path | None,
) -> ShardedRecord:
    """Run everything. A collective.

    Args:
        options: Of the command line.
        place: Where this rank stands.
        progress: Called with steps begun, steps in all, and what is being done.
        say: Called with what a model that is not tiny is put to, and about how long that takes, before it begins.
        arguments: The command line, without the program.
        started: ``time.perf_counter()`` when the program began.
        started_here: The ranks were started by this program.
        out: Folder for results, from which those of another run are taken; None for none.

    Returns:
        The record, on every rank.

    Raises:
        ValueError: Options that are wrong, or ranks that disagree.
    """
    check_same_start(arguments, place.device)
    request, loaded = prepare(options, place)
    if loaded is not None:
        check_same_data(loaded)
    if out is not None and place.rank == 0:
        discard_results(out, SHARDED_FILES)  # an interrupted run must not leave the results of another behind
    steps, total = count(), _num_steps(request)
    with torch_threads(1 if options.is_tiny else None), seldom_collected():
        outcome = run_sharded_parity(
            request,
            lambda text: progress(min(next(steps), total), total, text),
            say=None if options.is_tiny else say,
        )
        environment = read_environment(place.device)
    facts = ShardedFacts(
        command=["packparity", *arguments],
        environment=environment,
        world_size=place.world_size,
        backend=str(dist.get_backend()),
        started_by="local ranks" if started_here else "environment",
        total_s=time.perf_counter() - started,
        data=None if loaded is None else data_record(loaded, request.cases),
        notes=[*_notes(place), *notes_on_not_planted(outcome.not_planted, request.precisions)],
    )
    return record_sharded(request, outcome, facts)


def _num_steps(request: ShardedRequest) -> int:
    """Steps of which progress tells, about."""
    of_precision = len(request.scenarios) * (1 + len(request.subjects)) + len(CHECKS) + len(request.faults)
    return len(request.precisions) * of_precision + len(request.harmless)


def _notes(place: RankPlace) -> list[str]:
    notes = ["images are not run sharded"]
    if not place.device.startswith("cuda"):
        notes.append(
            "ranks were processes on CPUs over gloo: neither NCCL nor a GPU's kernels took part"
            + ("" if torch.cuda.is_available() else "; there is none here")
        )
    return notes


def hand_over(record: ShardedRecord, place: RankPlace, *, out: Path | None, as_json: bool) -> int:
    """Write and show the record on rank 0. A collective.

    Args:
        record: The record.
        place: Where this rank stands.
        out: Folder for results; None for none.
        as_json: Show it as JSON.

    Returns:
        The exit status, the same on every rank.

    Raises:
        OutputError: On rank 0: the folder cannot be written.
    """
    status = exit_status(Verdict(record.verdict))
    if place.rank == 0:
        console = Console(file=sys.__stdout__)

        def show() -> None:
            if as_json:
                console.file.write(sharded_json(record))
            else:
                print_sharded(record, console)

        written = written_and_shown(lambda: write_sharded(record, out) if out is not None else (), show)
        if not as_json:
            for path in written:
                console.print(str(path), highlight=False, soft_wrap=True)
        console.file.flush()
    return int(all_gathered(status)[0])

"""All families, each in a process of its own: some take for ever, some end the process that they run in."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from reports.families_record import FamiliesRecord, FamilyRecord, FamilyState, WayRecord
from verify.environment import read_environment
from verify.families.names import causal_lm_classes
from verify.families.probe import CALLS, NotBuiltError, probe
from verify.tool_version import tool_version
from verify.workers import interrupts_wait

Progress = Callable[[int, int, str], None]

_SECONDS_TO_START = 120.0
"""The first process waits for imports."""


def run_families(
    families: Sequence[str], *, seed: int, seconds_per_family: float, progress: Progress, command: Sequence[str]
) -> FamiliesRecord:
    """Measure families, one after the other.

    Args:
        families: Model types.
        seed: Seed of weights and examples.
        seconds_per_family: After that a family is given up.
        progress: Called before each family.
        command: The command line, for the record.

    Returns:
        The record.
    """
    started = time.perf_counter()
    context = _context()
    records = []
    for index, model_type in enumerate(families):
        progress(index, len(families), model_type)
        records.append(measure_apart(context, model_type, seed, seconds_per_family, measure_and_send))
    return FamiliesRecord(
        tool_version=tool_version(),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        environment=read_environment("cpu"),
        seed=seed,
        seconds_per_family=seconds_per_family,
        ways=dict(CALLS),
        families=records,
        total_s=time.perf_counter() - started,
    )


def _context() -> BaseContext:
    """Processes that start with everything imported, where the system can do that."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["verify.families.probe", "transformers.models.llama.modeling_llama"])
    return context


def measure_apart(
    context: Any, model_type: str, seed: int, seconds: float, work: Callable[[str, int, Connection], None]
) -> FamilyRecord:
    """Measure a family in a process of its own.

    Args:
        context: How processes start.
        model_type: A model type for which transformers has a causal LM.
        seed: Seed of weights and examples.
        seconds: Time from when the process has begun.
        work: What it does: it sends one message when it begins, and its record.

    Returns:
        The record; a process that ended or took too long is a family that was not measured.
    """
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(model_type, seed, sender), daemon=True)
    with interrupts_wait():
        process.start()
    sender.close()
    try:
        if not receiver.poll(_SECONDS_TO_START):
            return _not_measured(model_type, "timed-out", f"not begun after {_SECONDS_TO_START:g} s", _SECONDS_TO_START)
        receiver.recv_bytes()  # it has begun
        if not receiver.poll(seconds):
            return _not_measured(model_type, "timed-out", f"not done after {seconds:g} s", seconds)
        return FamilyRecord.model_validate_json(receiver.recv_bytes())
    except EOFError:
        process.join()
        return _not_measured(model_type, "crashed", f"its process ended with status {process.exitcode}", 0.0)
    finally:
        process.kill()
        process.join()
        receiver.close()


def measure_and_send(model_type: str, seed: int, sender: Connection) -> None:
    """What a process of its own does; model classes print and warn as they like."""
    import torch
    from transformers.utils import logging

    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    sender.send_bytes(b"begun")
    sender.send_bytes(measure(model_type, seed).model_dump_json().encode())


def measure(model_type: str, seed: int) -> FamilyRecord:
    """Measure one family in this process.

    Args:
        model_type: A model type for which transformers has a causal LM.
        seed: Seed of weights and examples.

    Returns:
        Its record; a family that cannot be built has the reason.
    """
    import torch

    started = time.perf_counter()
    try:
        with torch.no_grad():
            found = probe(model_type, seed=seed)
    except NotBuiltError as error:
        return _not_measured(model_type, "not-built", str(error), time.perf_counter() - started)
    return FamilyRecord(
        model_type=model_type,
        architecture=found.architecture,
        state="measured",
        reason="",
        num_parameters=found.num_parameters,
        layer_kinds=list(found.layer_kinds),
        positions=found.positions,
        ways=[WayRecord(**asdict(way)) for way in found.ways],
        elapsed_s=time.perf_counter() - started,
    )


def _not_measured(model_type: str, state: FamilyState, reason: str, elapsed_s: float) -> FamilyRecord:
    return FamilyRecord(
        model_type=model_type,
        architecture=causal_lm_classes()[model_type],
        state=state,
        reason=reason,
        num_parameters=None,
        layer_kinds=[],
        positions=None,
        ways=[],
        elapsed_s=elapsed_s,
    )

"""How many processes a run is shared among: as many as pay, where it is safe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import torch

from verify.subject import Subject
from verify.subjects import is_built_in

_MOST = 8
"""Beyond that each has too few pieces of work to make up for a model of its own."""
_PIECES_EACH = 4


def choose_num_processes(asked: int | None, *, num_pieces: int, num_threads: int, obstacle: str) -> int:
    """How many processes do the work of a run.

    Args:
        asked: What ``--jobs`` says, or None.
        num_pieces: Pieces of work that are independent of each other.
        num_threads: Threads that each process computes with.
        obstacle: Why it has to be one, or "".

    Returns:
        What was asked for, at most one for each piece; else one for every ``num_threads`` usable cores, as far as there
        is work for them.

    Raises:
        ValueError: Several were asked for, and it has to be one.
    """
    if obstacle:
        if asked is not None and asked > 1:
            raise ValueError(f"--jobs {asked}: {obstacle}; give --jobs 1, or leave it out")
        return 1
    if asked is not None:
        return min(asked, num_pieces)
    return max(1, min(_usable_cores() // num_threads, num_pieces // _PIECES_EACH, _MOST))


def why_one_process(subjects: Sequence[Subject], *, device: str, large: bool, fresh: bool) -> str:
    """Why the work of a run cannot be shared among processes; "" if it can.

    Args:
        subjects: The subjects of the run.
        device: The torch device.
        large: Each process would hold a large model.
        fresh: torch was loaded by this program, for this run, and has computed nothing yet.

    Returns:
        The reason, in words.
    """
    foreign = [subject.name for subject in subjects if not is_built_in(subject)]
    if not hasattr(os, "fork") or sys.platform == "darwin":
        return f"processes cannot be forked safely on {sys.platform}"
    if not fresh:
        return "torch was loaded before the program began, and what it has started does not survive a fork"
    if torch.device(device).type != "cpu" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "only a run on the CPU is shared among processes"
    if large:
        return "each process would hold a large model"
    if foreign:
        return f"subject {foreign[0]} is not one of ours and may keep something from one call to the next"
    return ""


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

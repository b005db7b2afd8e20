"""How a run measures, what it did not, and what a reader must know, in words for its record."""

from __future__ import annotations

import os
from collections.abc import Mapping

from reports.cost_record import MemoryMeasure
from reports.record_setting import ModelRecord
from verify.cost.device import Device, reset_peak_resident
from verify.cost.measure import WARM_UP_STEPS
from verify.cost.request import PreparedCost
from verify.cost.statistics import RESAMPLES

MEMORY_MEANINGS: Mapping[MemoryMeasure, str] = {
    "cuda-allocator": (
        "torch's CUDA allocator: the most bytes of tensors within the step (max_memory_allocated), its peak reset "
        "before each step; what the allocator reserves is recorded beside it"
    ),
    "live-bytes": (
        "bytes of tensors alive on the CPU, followed from the operator that makes one to its end, in a step apart "
        "that is not timed; they follow from the shapes and are the same on every run, but an accelerator's kernels "
        "keep other things: here dense attention keeps a mask of numbers for each layer, and split attention one in "
        "all, which it does not need on CUDA; what an operator uses inside is not seen"
    ),
    "resident": (
        "resident memory of each process, its peak reset before each step (clear_refs): it holds libraries, and what "
        "the C library keeps of what was freed, so that it hides savings rather than inventing them"
    ),
}

_RESETS: Mapping[MemoryMeasure, str] = {
    "cuda-allocator": "peaks of device and process are reset before each step",
    "live-bytes": (
        "the peak of resident memory is reset before each step; live bytes are followed once for each path and shape"
    ),
    "resident": "the peak of resident memory is reset before each step",
}


def procedure(memory_measure: MemoryMeasure) -> list[str]:
    """Synchronisation points, when peaks are reset, order, warm-up, statistics."""
    resets = "" if reset_peak_resident() else "; this system resets none of a process: it is that of the run so far"
    return [
        "a step is the reference pass (adapters off), the policy pass, backward, and AdamW on the adapters; packing "
        "the batch into rows is part of it",
        f"{WARM_UP_STEPS} warm-up steps of each path before each workload, recorded apart; graphs that torch.compile "
        "makes later are counted in their step",
        "rounds of one step of each path on one batch, in turn forwards and backwards (A B B A)",
        "each path trains adapters of its own from one start; they are put in and taken out between steps",
        "garbage is collected, ranks wait for one another, the device is synchronised before a step; it is "
        "synchronised again before the clock is read (monotonic, nanoseconds)",
        _RESETS[memory_measure] + resets,
        "a step takes as long as its slowest rank; medians and quartiles over rounds",
        f"intervals: percentile bootstrap, {RESAMPLES:,} resamples of rounds, both paths of a ratio drawn together; "
        "the best unpacked path is chosen by the same steps",
        "memory: per step the sum over ranks of each one's peak within it, then the largest over steps",
        "slots that pass the embedding are counted in warm-up and held against each path's layout",
    ]


def not_measured(prepared: PreparedCost, not_applicable: Mapping[str, str]) -> list[str]:
    """The cells that this run leaves empty.

    Args:
        prepared: What was asked for.
        not_applicable: Why a path was not measured, by its name.
    """
    cells = [f"{name}: {reason}" for name, reason in not_applicable.items()]
    if not Device(prepared.device).is_cuda:
        cells.append("CUDA: fused kernels, an allocator's peaks and reserved memory, NCCL")
    if prepared.num_ranks == 1:
        cells.append("several ranks: sharded parameters, communication")
    if prepared.preset is not None and prepared.scale == "tiny":
        cells.append(f"{prepared.preset.name} at its full scale: Qwen3-8B on two GB10 nodes")
    return cells


def notes_on(sessions: int, load: float | None, model: ModelRecord) -> list[str]:
    """What a reader must know of the run.

    Args:
        sessions: Processes that the steps come from, one after another.
        load: Processes that wanted a core when it began.
        model: The model.
    """
    notes = []
    if sessions > 1:
        notes.append(f"the run was interrupted and resumed: its steps come from {sessions} processes")
    if model.num_layers != model.num_layers_published:
        notes.append(f"depth cut to {model.num_layers} of {model.num_layers_published} layers")
    if load is not None and load >= 1:
        notes.append(
            f"other processes ran when it began (load {load:.1f} on {os.cpu_count()} cores): wall times are those of a "
            "shared machine, and processor time says more"
        )
    return notes

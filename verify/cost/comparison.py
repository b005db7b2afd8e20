"""Recorded ratios beside measured ones, and in what the two runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from reports.cost_record import ConditionRecord, PathName, RecordedRatioRecord, WorkloadRecord
from reports.recorded_ratios import RECORDED, RecordedRatio

_VANILLA: PathName = "padded"
"""The unpacked path that stands here for the recorded run's, which was not described."""


def recorded_ratios(
    preset: str, workloads: Sequence[WorkloadRecord], not_applicable: dict[str, str], data_shape: str
) -> list[RecordedRatioRecord]:
    """The recorded ratios of a preset, each beside the median of those measured here.

    Args:
        preset: Name of the preset.
        workloads: What was measured.
        not_applicable: Why a path was not, by its name.
        data_shape: Shape of the preference file; "" without one.
    """
    entering = [workload for workload in workloads if workload.enters_comparison]
    return [_beside(recorded, entering, not_applicable, data_shape) for recorded in RECORDED[preset]]


def _beside(
    recorded: RecordedRatio, workloads: Sequence[WorkloadRecord], not_applicable: dict[str, str], data_shape: str
) -> RecordedRatioRecord:
    over: PathName = _VANILLA if recorded.over == "vanilla" else "dense"
    of_this_data = data_shape == recorded.data_shape
    ratios = [workload.ratio(recorded.path, over) for workload in workloads if of_this_data]
    found = [ratio for ratio in ratios if ratio is not None]
    missing = next((name for name in (recorded.path, over) if name in not_applicable), None)
    memories = [ratio.memory for ratio in found if ratio.memory is not None]
    return RecordedRatioRecord(
        check=recorded.check,
        path=recorded.path,
        over=recorded.over,
        recorded_time=recorded.time,
        recorded_memory=recorded.memory,
        over_here=over,
        measured_time=median(ratio.time.value for ratio in found) if found else None,
        measured_memory=median(memories) if memories else None,
        why_not="" if found else _why_not(recorded, not_applicable.get(missing or ""), of_this_data),
    )


def _why_not(recorded: RecordedRatio, not_applicable: str | None, of_this_data: bool) -> str:
    if not_applicable:
        return not_applicable
    return "the path was not among --paths" if of_this_data else f"--data is not of the shape {recorded.data_shape}"


def differing_conditions(
    *,
    model: str,
    num_layers: int,
    dtype: str,
    device: str,
    num_ranks: int,
    pairs_per_rank: int,
    lengths: str,
    tokens: str,
) -> list[ConditionRecord]:
    """Where the recorded run and this one differ, as far as the recorded one is known."""
    rows = (
        ("model", "Qwen3-8B, 36 layers", f"{model}, {num_layers} layers"),
        ("machine", "two GB10 nodes", device),
        ("ranks", "2, FSDP", "1, not sharded" if num_ranks == 1 else f"{num_ranks}, FSDP2"),
        ("dtype", "bfloat16", dtype),
        ("pairs of a step on each rank", "not recorded", str(pairs_per_rank)),
        ("lengths", "cut to the stated limits", lengths),
        ("tokens", "of the data sets", tokens),
        ("unpacked path", '"vanilla", not described', "padded on the right, causal SDPA without a mask"),
        ("raw values, parity record", "not retained", "in this record"),
    )
    return [ConditionRecord(what=what, recorded=there, here=here) for what, there, here in rows if there != here]

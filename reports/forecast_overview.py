"""What all renderings of a forecast say in the same words."""

from __future__ import annotations

from reports.forecast_record import ForecastRecord, PathRecord
from reports.words import count, plural, size

UNPACKED = ("padded", "unpadded", "padding-free")


def title(record: ForecastRecord) -> str:
    """What is forecast."""
    step = record.step
    trained = f"LoRA rank {step.lora_rank}" if step.train == "lora" else "all parameters"
    return (
        f"{step.model}, {step.num_layers} layers, {step.dtype}, {trained}"
        f"{', activation checkpointing' if step.checkpointing else ''}; "
        f"{plural(step.pairs, 'pair')} of {step.prompt}/{step.response} tokens on each of "
        f"{plural(step.ranks, 'rank')}, {record.device.name}"
    )


def verdict(record: ForecastRecord) -> str:
    """Which path wins, or by how much the nearest does not fit."""
    forecast = [path for path in record.paths if path.peak is not None]
    if not forecast:
        return f"nothing was forecast: {record.paths[0].reason}"
    if not record.fitting:
        nearest = min(forecast, key=_total)
        missing = size(_total(nearest) - record.device.usable_bytes)
        return (
            f"does not fit: of {size(record.device.usable_bytes)} that can be used on each {record.device.name}, "
            f"{nearest.path} takes least and is {missing} over"
        )
    fastest, smallest = record.fitting[0], min(record.fitting, key=_total)
    against = next((path for path in record.fitting if path.path in UNPACKED and path is not fastest), None)
    gain = f", {fastest.total_s / against.total_s:.2f} of the time of {against.path}" if against else ""
    beside = "" if smallest is fastest else f"; {smallest.path} takes the least memory, {size(_total(smallest))}"
    over = len(forecast) - len(record.fitting)
    too_large = f"; {plural(over, 'path')} would not fit" if over else ""
    return (
        f"{fastest.path} is fastest: at least {fastest.total_s:.3g} s a step{gain}, {size(_total(fastest))}{beside}"
        f"{too_large}"
    )


def outcomes(record: ForecastRecord) -> dict[str, str]:
    """Of each path whether it fits."""
    return {path.path: _outcome(record, path) for path in record.paths}


def _outcome(record: ForecastRecord, path: PathRecord) -> str:
    if path.peak is None:
        return "not forecast"
    return "fits" if record.fits(path) else "does not fit"


def amounts(record: ForecastRecord) -> dict[str, float]:
    """What is forecast of each path: FLOPs, bytes, seconds."""
    found: dict[str, float] = {}
    for path in record.paths:
        if path.peak is not None and path.counted_flops is not None:
            found[f"{path.path}, TFLOP"] = path.counted_flops / 1e12
            found[f"{path.path}, peak GiB"] = path.peak.total / 2**30
            found[f"{path.path}, least s"] = path.total_s
    return found


def _total(path: PathRecord) -> int:
    return 0 if path.peak is None else path.peak.total


HEADER = ("path", "TFLOP", "skipped", "peak GiB", "room GiB", "least s", "longest pair")


def cells(record: ForecastRecord, path: PathRecord) -> tuple[str, ...]:
    """A path as one line of a table, under ``HEADER``."""
    if path.peak is None or path.counted_flops is None or path.computed_flops is None:
        return (path.path, *[""] * (len(HEADER) - 2), path.reason)
    room = record.device.usable_bytes - path.peak.total
    return (
        path.path,
        f"{path.counted_flops / 1e12:,.4g}",
        f"{1 - path.computed_flops / path.counted_flops:.1%}",
        f"{path.peak.total / 2**30:,.2f}",
        f"{room / 2**30:+,.2f}",
        f"{path.total_s:.3g}",
        longest(path),
    )


def longest(path: PathRecord) -> str:
    """The longest pair, e.g. "8,192/8,192"; marked where the model has no more positions."""
    found = path.longest
    if found is None:
        return ""
    if not found.prompt:
        return "none"
    return f"{count(found.prompt)}/{count(found.response)}{ALL_POSITIONS if found.limit == 'positions' else ''}"


ALL_POSITIONS = " max"
"""After a longest pair that has as many tokens as the model has positions."""


def legend(record: ForecastRecord) -> str:
    """What the mark stands for, where it occurs; else ""."""
    marked = any(longest(path).endswith(ALL_POSITIONS) for path in record.paths)
    return "max: as many tokens as the model has positions, memory would take more" if marked else ""


PEAK_HEADER = ("path", "weights", "optimizer", "grads", "gathered", "activations", "sum", "phase, layer")


def peak_cells(path: PathRecord) -> tuple[str, ...]:
    """The peak of a path by what it consists of, under ``PEAK_HEADER``."""
    peak = path.peak
    if peak is None:
        return (path.path, *[""] * (len(PEAK_HEADER) - 1))
    parts = (peak.parameters, peak.optimizer_state, peak.gradients, peak.gathered, peak.activations, peak.total)
    layer = "" if peak.layer is None else f", {peak.layer + 1}"
    return (path.path, *(f"{part / 2**30:,.2f}" for part in parts), f"{peak.phase}{layer}")


TIME_HEADER = ("path", "reference", "policy", "backward", "optimizer", "sum", "waits for memory", "waits for ranks")


def time_cells(path: PathRecord) -> tuple[str, ...]:
    """The least time of a path by phase, under ``TIME_HEADER``."""
    if path.peak is None:
        return (path.path, *[""] * (len(TIME_HEADER) - 1))
    phases = (path.seconds.get(phase, 0.0) for phase in TIME_HEADER[1:5])
    return (path.path, *(f"{seconds:.3g}" for seconds in (*phases, path.total_s, path.memory_bound_s, path.exposed_s)))

"""What all renderings of measured cost say in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.cost_record import (
    CostPathRecord,
    CostRecord,
    HeldOutRecord,
    IntervalRecord,
    PathFigures,
    WorkloadRecord,
)
from reports.words import NONE, count, depth, number, plural, size

UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """Held-out pairs of one path beside those of the first."""

    workload: str
    path: str
    loss: str
    margin: str
    accuracy: str
    ties: str
    flips: str
    """Pairs decided otherwise than by the first path."""


def headline(record: CostRecord) -> list[str]:
    """One line for each packed path: its time and memory over the best unpacked path, median over workloads."""
    return [
        _path_line(record, path.name, path.parity is not None)
        for path in record.measured_paths
        if path.role == "packed"
    ]


def _path_line(record: CostRecord, path: str, is_verified: bool) -> str:
    parts = []
    for workload in record.workloads:
        if not workload.enters_comparison:
            continue
        time = workload.ratio(path, workload.best_unpacked_time)
        memory = workload.ratio(path, workload.best_unpacked_memory)
        if time is None:
            continue
        text = f"{workload.name}: {interval(time.time)} of the time of {time.over}"
        if time.cpu_time is not None and record.environment.device == "cpu":
            text += f" ({interval(time.cpu_time)} of its processor time)"
        if memory is not None and memory.memory is not None:
            text += f", {number(memory.memory)} of the memory of {memory.over}"
        parts.append(text)
    verified = "parity PASS cited" if is_verified else UNVERIFIED
    over = "over the best unpacked path; " if parts else ""
    return f"{path} ({verified}): {over}{'; '.join(parts) or 'no unpacked path was measured beside it'}"


def absent(record: CostRecord) -> list[str]:
    """Paths that were not measured, and why."""
    return [f"{path.name}: NOT_APPLICABLE: {path.reason}" for path in record.paths if path.reason]


def interval(ratio: IntervalRecord) -> str:
    """A ratio with its interval, e.g. "0.712 [0.698, 0.731]"."""
    return f"{number(ratio.value)} [{number(ratio.low)}, {number(ratio.high)}]"


def quartiles(figures: PathFigures) -> str:
    """The spread around a median, e.g. "0.412 to 0.430"."""
    return f"{number(figures.lower_quartile_s)} to {number(figures.upper_quartile_s)}"


def memory(num_bytes: int | None) -> str:
    """Bytes, or a dash where nothing counted them."""
    return NONE if num_bytes is None else size(num_bytes)


FIGURE_COLUMNS = (
    "path",
    "median s",
    "quartiles",
    "CPU s",
    "pairs/s",
    "useful tokens/s",
    "padded tokens/s",
    "useful share",
    "peak",
    "of the step",
    "host peak",
    "time / best unpacked",
    "memory / best unpacked",
    "FLOPs",
)


def figure_rows(workload: WorkloadRecord) -> list[tuple[str, ...]]:
    """A line for each path, in the columns of ``FIGURE_COLUMNS``."""
    rows: list[tuple[str, ...]] = []
    for figures in workload.figures:
        time = workload.ratio(figures.path, workload.best_unpacked_time)
        peak = workload.ratio(figures.path, workload.best_unpacked_memory)
        rows.append(
            (
                figures.path,
                number(figures.median_s),
                quartiles(figures),
                number(figures.median_cpu_s),
                rate(figures.pairs_per_s),
                rate(figures.tokens_per_s),
                rate(figures.slots_per_s),
                f"{100 * figures.utilisation:.0f} %",
                memory(figures.peak_bytes),
                memory(figures.step_bytes),
                memory(figures.host_peak_bytes),
                _own(figures.path, workload.best_unpacked_time, None if time is None else interval(time.time)),
                _own(figures.path, workload.best_unpacked_memory, None if peak is None else number(peak.memory)),
                NONE if time is None or time.flops is None else number(time.flops),
            )
        )
    return rows


def rate(per_second: float) -> str:
    """How many in a second, e.g. "2,240" or "6.45"."""
    return count(round(per_second)) if per_second >= 1000 else number(per_second)


def _own(path: str, best: str | None, ratio: str | None) -> str:
    return "the best" if path == best else ratio or NONE


RATIO_COLUMNS = ("path", "over", "time", "CPU time", "memory", "memory of the step", "FLOPs")


def ratio_rows(workload: WorkloadRecord) -> list[tuple[str, ...]]:
    """Packed paths over all others, then packed ones over one another."""
    order = [figures.path for figures in workload.figures]
    packed = [path for path in order if path in ("dense", "sparse", "split")]
    rows = []
    for ratio in workload.ratios:
        if ratio.path in packed and order.index(ratio.path) > order.index(ratio.over):
            cpu_time = NONE if ratio.cpu_time is None else interval(ratio.cpu_time)
            cells = (ratio.memory, ratio.step_memory, ratio.flops)
            rows.append((ratio.path, ratio.over, interval(ratio.time), cpu_time, *map(number, cells)))
    return rows


RECORDED_COLUMNS = ("check", "ratio", "recorded time", "here", "recorded memory", "here", "")


def recorded_rows(record: CostRecord) -> list[tuple[str, ...]]:
    """Recorded ratios beside those measured here."""
    return [
        (
            each.check,
            f"{each.path} / {each.over}" + (f" ({each.over_here} here)" if each.over != each.over_here else ""),
            number(each.recorded_time),
            number(each.measured_time),
            number(each.recorded_memory),
            number(each.measured_memory),
            each.why_not,
        )
        for each in record.recorded
    ]


HELD_OUT_COLUMNS = ("workload", "path", "loss", "margin", "accuracy", "ties", "flips")


def held_out_rows(record: CostRecord) -> list[HeldOutRow]:
    """Held-out pairs at the end of each workload, each path beside the first one."""
    rows = []
    for workload in record.workloads:
        ends = [held for held in workload.held_out if held.when == "end"]
        rows += [_held_out_row(workload.name, held, ends[0]) for held in ends]
    return rows


def _held_out_row(workload: str, held: HeldOutRecord, first: HeldOutRecord) -> HeldOutRow:
    pairs = len(held.margins)
    flips = "" if held is first else f"{held.flips(first)} of {pairs}"
    return HeldOutRow(
        workload,
        held.path,
        f"{held.loss:.7f}",
        f"{held.mean_margin:.7f}",
        f"{held.accuracy:.4f}",
        str(held.ties),
        flips,
    )


def cells(row: HeldOutRow) -> Sequence[str]:
    """The row in the columns of ``HELD_OUT_COLUMNS``."""
    return (row.workload, row.path, row.loss, row.margin, row.accuracy, row.ties, row.flips)


PATH_COLUMNS = ("path", "role", "rows and attention", "subject", "parity")


def path_rows(record: CostRecord) -> list[tuple[str, ...]]:
    """Every path, measured or not, with what its parity rests on."""
    return [(path.name, path.role, path.how, path.subject, _parity(path)) for path in record.paths]


def _parity(path: CostPathRecord) -> str:
    if path.reason:
        return f"NOT_APPLICABLE: {path.reason}"
    if path.parity is None:
        return "the baseline" if path.role == "unpacked" else UNVERIFIED
    cited = path.parity
    sharded = f" sharded over {cited.world_size} ranks" if cited.world_size > 1 else ""
    return (
        f"PASS in {cited.dtype}{sharded}, {count(cited.num_compared)} values in {plural(cited.cases, 'case')} "
        f"({cited.created_utc}, record {cited.record_sha256[:12]})"
    )


def summary(record: CostRecord) -> str:
    """What was run, in one line."""
    preset = f"preset {record.preset}, scale {record.scale}; " if record.preset else ""
    ranks = "one process" if record.num_ranks == 1 else f"{record.num_ranks} ranks, FSDP2"
    return (
        f"{preset}{record.model.name}, {depth(record.model)}, {record.dtype}, {record.environment.device}, {ranks}; "
        f"steps of policy, reference, backward and optimizer on {plural(record.pairs_per_rank, 'pair')} a rank"
    )


def facts(record: CostRecord) -> dict[str, object]:
    """Machine, versions, model and training, by name."""
    return {
        **record.machine,
        "python": record.environment.python,
        "platform": record.environment.platform,
        **record.environment.packages,
        "model": f"{record.model.name}, {count(record.model.num_parameters)} parameters, {record.model.weights}",
        "LoRA": record.model.lora,
        "objective": record.objective,
        "optimizer": record.optimizer,
        "seeds": record.seeds,
        **({"sharding": record.sharding} if record.sharding else {}),
        **({"data": record.data} if record.data else {}),
    }


def closing(record: CostRecord) -> str:
    """Which program, when, how long."""
    return f"packparity {record.tool_version}, {record.created_utc}, {record.total_s:.0f} s"

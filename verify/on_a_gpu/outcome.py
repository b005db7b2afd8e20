"""What became of a step, read from the record that it wrote: a status alone is not believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reports.cost_overview import headline
from reports.cost_record import CostRecord
from reports.cost_store import read_cost
from reports.forecast_record import ForecastRecord
from reports.forecast_store import read_forecast
from reports.overview import closing_line, not_applicable
from reports.record_setting import Environment
from reports.store import RecordError, read_record
from verify.on_a_gpu.plan import COMPARED, Kind
from verify.on_a_gpu.recompilation import read_recompilation

Verdict = Literal["PASS", "FAIL", "ERROR", "INCONCLUSIVE", "NOT_APPLICABLE", "MEASURED", "NOT_REACHED"]
PROVES_NOTHING: tuple[Verdict, ...] = ("ERROR", "INCONCLUSIVE", "NOT_REACHED")

_FULL_FLOAT32 = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a record says.

    Args:
        verdict: In one word.
        says: In a sentence.
        not_applicable: What could not be done here, each with its reason.
        machine: Device, processor, versions.
    """

    verdict: Verdict
    says: str
    not_applicable: tuple[str, ...] = ()
    machine: Mapping[str, str] | None = None


def read_outcome(kind: Kind, folder: Path, *, needs_float32: bool) -> Found:
    """Read what a step has written.

    Args:
        kind: The kind of the step.
        folder: Its folder.
        needs_float32: TF32 in its passes is a FAIL.

    Returns:
        What it says; ERROR where there is no valid record.
    """
    readers: Mapping[Kind, Callable[[Path], Found]] = {
        "check": lambda path: _of_check(path, needs_float32=needs_float32),
        "recompilation": _of_recompilation,
        "cost": _of_cost,
        "forecast": _of_forecast,
    }
    try:
        return readers[kind](folder)
    except RecordError as error:
        return Found(verdict="ERROR", says=str(error))


def _of_check(folder: Path, *, needs_float32: bool) -> Found:
    record = read_record(folder)
    left_out = tuple(f"{each.subject}, {each.what}: {each.reason}" for each in not_applicable(record))
    products = record.environment.float32_products
    verdict: Verdict = record.verdict
    says = closing_line(record)
    if needs_float32:
        says = f"{says}; float32 products: {products or 'not recorded'}"
        if not products.startswith(_FULL_FLOAT32):
            verdict = "FAIL" if products else "INCONCLUSIVE"
    return Found(verdict=verdict, says=says, not_applicable=left_out, machine=_machine(record.environment))


def _of_recompilation(folder: Path) -> Found:
    record = read_recompilation(folder)
    left_out = (record.reason,) if record.verdict == "NOT_APPLICABLE" else ()
    return Found(
        verdict=record.verdict, says=record.reason, not_applicable=left_out, machine=_machine(record.environment)
    )


def _of_cost(folder: Path) -> Found:
    record = read_cost(folder)
    left_out = tuple(f"{path.name}: {path.reason}" for path in record.paths if path.reason)
    return Found(
        verdict="MEASURED",
        says="; ".join(headline(record)),
        not_applicable=left_out,
        machine=_machine(record.environment),
    )


def _of_forecast(folder: Path) -> Found:
    record = read_forecast(folder)
    left_out = tuple(f"{path.path}: {path.reason}" for path in record.paths if path.reason)
    step = record.step
    says = f"{step.num_layers} layers, prompt {step.prompt}, response {step.response}, on {record.device.name}"
    return Found(verdict="MEASURED", says=says, not_applicable=left_out)


def _machine(environment: Environment) -> dict[str, str]:
    versions = {name: environment.packages[name] for name in sorted(environment.packages)}
    return {
        "device": environment.device,
        "processor": environment.processor,
        "platform": environment.platform,
        "python": environment.python,
        "float32 products": environment.float32_products,
        **versions,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A path's step as measured and as forecast."""

    workload: str
    path: str
    measured_peak_bytes: int | None
    forecast_peak_bytes: int
    measured_s: float
    least_s: float


def forecast_beside_measured(out: Path) -> list[Beside]:
    """Every path that was both measured and forecast; nothing where either record is missing."""
    try:
        cost = read_cost(out / "mechanism")
    except RecordError:
        return []
    found: list[Beside] = []
    for regime in COMPARED:
        try:
            forecast = read_forecast(out / f"forecast-{regime}")
        except RecordError:
            continue
        found += _beside(regime, cost, forecast)
    return found


def _beside(regime: str, cost: CostRecord, forecast: ForecastRecord) -> list[Beside]:
    workload = next((each for each in cost.workloads if each.name == regime), None)
    found = []
    for path in forecast.paths:
        figures = workload.figures_of(path.path) if workload is not None else None
        if figures is not None and path.peak is not None:
            found.append(
                Beside(
                    workload=regime,
                    path=path.path,
                    measured_peak_bytes=figures.peak_bytes,
                    forecast_peak_bytes=path.peak.total,
                    measured_s=figures.median_s,
                    least_s=path.total_s,
                )
            )
    return found

"""The record of a forecast: what a training step would take on a device, path by path, from shapes alone."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from reports.record_setting import Environment
from reports.values import Count, RecordPart, Text

FORECAST_VERSION: Literal[1] = 1

_ROUNDED_UP = 1 + 1e-9
Measure = Annotated[FiniteFloat, Field(ge=0)]


class DeviceRecord(RecordPart):
    """The device of each rank."""

    name: Text
    kind: Literal["cuda", "cpu"]
    memory_bytes: Count
    usable_bytes: Count
    flops_per_s: Measure
    bytes_per_s: Measure
    link_bytes_per_s: Measure | None
    """At which a rank receives in an all-gather; None where it is not known."""
    sources: list[Text]


class StepRecord(RecordPart):
    """What is forecast a step of, on each rank."""

    model: Text
    num_layers: Count
    num_parameters: Count
    """Without adapters."""
    num_trained: Count
    dtype: Text
    train: Literal["lora", "all"]
    lora_rank: Count | None
    checkpointing: bool
    prompt: Count
    response: Count
    pairs: Count
    """Of each rank."""
    ranks: Count
    optimizer: Text

    @model_validator(mode="after")
    def _is_a_step(self) -> Self:
        counts = {"prompt": self.prompt, "response": self.response, "pairs": self.pairs, "ranks": self.ranks}
        if empty := next((name for name, count in counts.items() if not count), ""):
            raise ValueError(f"a step with {empty} 0")
        if (self.train == "lora") != (self.lora_rank is not None):
            raise ValueError(f"{self.train} is trained with adapters of rank {self.lora_rank}")
        if self.train == "all" and self.num_trained != self.num_parameters:
            raise ValueError(f"all parameters are trained, but {self.num_trained} of {self.num_parameters}")
        return self


class TermRecord(RecordPart):
    """A term of the closed form; negative where a rule counts too many."""

    name: Text
    flops: int


class PeakRecord(RecordPart):
    """Bytes of a rank when most of them live."""

    parameters: Count
    optimizer_state: Count
    gradients: Count
    gathered: Count
    activations: Count
    phase: Text
    layer: Count | None

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.optimizer_state + self.gradients + self.gathered + self.activations


class LongestRecord(RecordPart):
    """The longest pair that fits, alone on a rank; both lengths 0 where none does."""

    prompt: Count
    response: Count
    peak_bytes: Count
    limit: Literal["memory", "positions"]


class PathRecord(RecordPart):
    """One path; not forecast where the device does not run it."""

    path: Text
    reason: Text
    """Why it is not forecast; "" where it is."""
    counted_flops: Count | None
    """As torch's FlopCounterMode counts."""
    computed_flops: Count | None
    """Without what causal and block-sparse kernels skip."""
    terms: list[TermRecord]
    """The closed form of the counted FLOPs; none for a model that it does not describe."""
    peak: PeakRecord | None
    seconds: dict[Text, Measure]
    """The least time, by phase."""
    memory_bound_s: Measure
    exposed_s: Measure
    """Seconds that wait for other ranks."""
    longest: LongestRecord | None
    elapsed_s: Measure
    """What the forecast itself took."""

    @property
    def total_s(self) -> float:
        """The least time of a step."""
        return sum(self.seconds.values())

    @model_validator(mode="after")
    def _is_forecast_or_explained(self) -> Self:
        parts = (self.counted_flops, self.computed_flops, self.peak)
        if bool(self.reason) != all(part is None for part in parts) or (not self.reason and None in parts):
            raise ValueError(f"path {self.path}: forecast in part, or without a reason: {self.reason!r}")
        if self.terms and sum(term.flops for term in self.terms) != self.counted_flops:
            raise ValueError(f"path {self.path}: the terms of the closed form do not add up to the FLOPs")
        if (self.computed_flops or 0) > (self.counted_flops or 0):
            raise ValueError(f"path {self.path}: more FLOPs computed than counted, which leaves nothing out")
        if self.reason == "" and not self.total_s > 0:
            raise ValueError(f"path {self.path}: a step of no time")
        waits = (("memory", self.memory_bound_s), ("other ranks", self.exposed_s))
        if odd := next((what for what, seconds in waits if seconds > self.total_s * _ROUNDED_UP), ""):
            raise ValueError(f"path {self.path}: waits for {odd} for longer than the step takes")
        return self


class ForecastRecord(RecordPart):
    """A forecast."""

    kind: Literal["forecast"] = "forecast"
    schema_version: Literal[1] = FORECAST_VERSION
    tool_version: Text
    created_utc: Text
    command: list[Text]
    environment: Environment
    step: StepRecord
    device: DeviceRecord
    assumptions: list[Text]
    paths: list[PathRecord]
    elapsed_s: Measure

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = [path.path for path in self.paths]
        if not names or len(set(names)) != len(names):
            raise ValueError("no path, or one twice")
        for path in self.paths:
            if path.longest is not None and path.longest.peak_bytes > self.device.usable_bytes:
                raise ValueError(f"path {path.path}: its longest pair takes more than the device's usable bytes")
        return self

    def fits(self, path: PathRecord) -> bool:
        """Whether a path was forecast, and a rank's device can hold its step."""
        return path.peak is not None and path.peak.total <= self.device.usable_bytes

    @property
    def fitting(self) -> list[PathRecord]:
        """The paths whose step fits, the fastest first."""
        return sorted(filter(self.fits, self.paths), key=lambda path: path.total_s)

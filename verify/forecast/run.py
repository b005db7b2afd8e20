"""A forecast from its request to its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from reports.cost_record import PathName
from reports.forecast_record import (
    DeviceRecord,
    ForecastRecord,
    LongestRecord,
    PathRecord,
    PeakRecord,
    StepRecord,
    TermRecord,
)
from verify.environment import read_environment
from verify.forecast.closed_form import closed_form
from verify.forecast.devices import DeviceProfile, device_profile
from verify.forecast.forecast import check_path, dtype_name, forecast_path, pairs_of
from verify.forecast.longest import STEP, longest_pair
from verify.forecast.paper_model import PaperModel, read_any_config
from verify.forecast.request import Training
from verify.forecast.roofline import ASSUMPTIONS
from verify.models.dtypes import DTYPES
from verify.subject import said_by
from verify.tool_version import tool_version

Progress = Callable[[int, int, str], None]

_MEMORY_ASSUMPTIONS = (
    "live bytes: storages that operators return, and parameters, gradients and AdamW's state; what kernels take "
    "inside, the CUDA context, NCCL's buffers and fragmentation come on top",
    "steady state: AdamW's state is there, in the dtype of what is trained (adapters float32; all parameters: that of "
    "the weights, with no float32 copy of them); gradients are set to None before each step",
)
_SHARDED_ASSUMPTION = (
    "FSDP2 as in torch 2.13, fully_shard on each decoder layer and on the rest: a rank keeps its share of each "
    "parameter, two layers are gathered at a time, and the root for the whole step; every rank has a batch of this size"
)
_CUDA_ASSUMPTION = (
    "attention on a GPU: causal and split calls by the flash kernel; a dense mask by the memory-efficient kernel, "
    "which keeps one mask of the weights' dtype for each layer; FlexAttention modelled as the flash kernel over the "
    "128 x 128 blocks of its block table"
)
_REFERENCE_ASSUMPTION = "all parameters trained: the reference policy is a frozen copy of the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRequest:
    """What the user asked for.

    Args:
        model: A published name, a shape file, a ``config.json`` or a folder that holds one.
        training: How it is trained.
        dtype: Name of the weights' dtype.
        prompt: Tokens of each prompt.
        response: Tokens of each response.
        pairs: Pairs of each rank.
        ranks: Number of ranks.
        device: Name of a profile.
        usable_gib: What a step may take of a device's memory; None for what the profile says.
        paths: The paths.
        search: Whether to look for the longest pair.
    """

    model: str
    training: Training
    dtype: str
    prompt: int
    response: int
    pairs: int
    ranks: int
    device: str
    usable_gib: float | None = None
    paths: tuple[PathName, ...]
    search: bool = True


def run_forecast(request: ForecastRequest, progress: Progress, *, command: Sequence[str]) -> ForecastRecord:
    """Forecast every path that is asked for.

    Args:
        request: The request.
        progress: Called before each path.
        command: The command line, for the record.

    Returns:
        The record.

    Raises:
        ValueError: A model, a device or a dtype that cannot be forecast, or a pair longer than the model's positions.
    """
    started = time.perf_counter()
    dtype = DTYPES[request.dtype]
    config = read_any_config(request.model)
    device = device_profile(request.device, dtype=dtype)
    if request.usable_gib is not None:
        device = replace(device, usable_bytes=int(request.usable_gib * 2**30))
    model = PaperModel(config, request.training, dtype=dtype, device_type=device.kind)
    if request.prompt + request.response > model.num_positions:
        raise ValueError(
            f"--prompt {request.prompt} and --response {request.response}: {request.model} has {model.num_positions} "
            "positions"
        )
    records = []
    for index, path in enumerate(request.paths):
        progress(index, len(request.paths), path)
        try:
            records.append(_path_record(model, path, device, request))
        except ValueError:
            raise
        except Exception as error:  # whatever a model of another kind makes transformers raise
            raise ValueError(
                f"{request.model}: a step of model type {config.model_type} cannot be followed on shapes, path {path}: "
                f"{said_by(error)}"
            ) from error
    return ForecastRecord(
        tool_version=tool_version(),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        environment=read_environment("cpu"),
        step=_step_record(model, request),
        device=_device_record(device),
        assumptions=list(_assumptions(request, device)),
        paths=records,
        elapsed_s=time.perf_counter() - started,
    )


def _path_record(model: PaperModel, path: PathName, device: DeviceProfile, request: ForecastRequest) -> PathRecord:
    started = time.perf_counter()
    try:
        check_path(path, device)
    except ValueError as error:
        return _not_forecast(path, str(error))
    lengths = pairs_of(prompt=request.prompt, response=request.response, number=request.pairs)
    found = forecast_path(model, path, lengths, device, num_ranks=request.ranks)
    longest = None
    if request.search:
        longest = longest_pair(
            model, path, device, prompt=request.prompt, response=request.response, num_ranks=request.ranks
        )
    peak = found.peak
    return PathRecord(
        path=path,
        reason="",
        counted_flops=found.work.counted,
        computed_flops=found.work.computed,
        terms=[
            TermRecord(name=term.name, flops=term.flops)
            for term in closed_form(model.config, request.training, path, lengths)
        ],
        peak=PeakRecord(
            parameters=peak.parameters,
            optimizer_state=peak.optimizer_state,
            gradients=peak.gradients,
            gathered=peak.gathered,
            activations=peak.activations,
            phase=peak.phase,
            layer=peak.layer,
        ),
        seconds={str(phase): seconds for phase, seconds in found.seconds.by_phase.items()},
        memory_bound_s=found.seconds.memory_bound,
        exposed_s=found.seconds.exposed,
        longest=None
        if longest is None
        else LongestRecord(
            prompt=longest.prompt, response=longest.response, peak_bytes=longest.peak_bytes, limit=longest.limit
        ),
        elapsed_s=time.perf_counter() - started,
    )


def _not_forecast(path: PathName, reason: str) -> PathRecord:
    return PathRecord(
        path=path,
        reason=reason,
        counted_flops=None,
        computed_flops=None,
        terms=[],
        peak=None,
        seconds={},
        memory_bound_s=0,
        exposed_s=0,
        longest=None,
        elapsed_s=0,
    )


def _step_record(model: PaperModel, request: ForecastRequest) -> StepRecord:
    adapters = request.training.train == "lora"
    elements, trained = model.num_elements()
    return StepRecord(
        model=request.model,
        num_layers=model.depth,
        num_parameters=elements - (trained if adapters else 0),
        num_trained=trained,
        dtype=dtype_name(model),
        train=request.training.train,
        lora_rank=request.training.lora.rank if adapters else None,
        checkpointing=request.training.checkpointing,
        prompt=request.prompt,
        response=request.response,
        pairs=request.pairs,
        ranks=request.ranks,
        optimizer="AdamW",
    )


def _device_record(device: DeviceProfile) -> DeviceRecord:
    return DeviceRecord(
        name=device.name,
        kind=device.kind,
        memory_bytes=device.memory_bytes,
        usable_bytes=device.usable_bytes,
        flops_per_s=max(device.flops_per_s.values()),
        bytes_per_s=device.bytes_per_s,
        link_bytes_per_s=device.link_bytes_per_s,
        sources=list(device.sources),
    )


def _assumptions(request: ForecastRequest, device: DeviceProfile) -> Sequence[str]:
    found = [*_MEMORY_ASSUMPTIONS]
    if request.ranks > 1:
        found.append(_SHARDED_ASSUMPTION)
    if device.kind == "cuda":
        found.append(_CUDA_ASSUMPTION)
    if request.training.train == "all":
        found.append(_REFERENCE_ASSUMPTION)
    found += ASSUMPTIONS
    if request.search:
        found.append(f"longest pair: of these proportions, alone on each rank, to {STEP} tokens")
    return found

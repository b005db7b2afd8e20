"""The forecast of a step on one path: FLOPs, peak bytes of a rank, and the least time it takes.

    model = PaperModel(read_any_config("qwen3-8b"), Training(), dtype=torch.bfloat16, device_type="cuda")
    batch = pairs_of(prompt=512, response=512, number=4)
    found = forecast_path(model, "split", batch, device_profile("gb10", dtype=torch.bfloat16), num_ranks=2)
    found.peak.total, found.seconds.total

Nothing is allocated: weights and activations are fake tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.cost_record import PathName
from reports.words import size
from verify.forecast.depth import Repeated
from verify.forecast.devices import DeviceProfile
from verify.forecast.limits import NO_FLEX_ON_CPU
from verify.forecast.paper_model import PaperModel
from verify.forecast.peak import PeakBytes, peak_of
from verify.forecast.roofline import StepSeconds, step_seconds
from verify.forecast.state import InFlight, OptimizerStep
from verify.forecast.work import Work, total_work
from verify.packing_plan.costs import GroupLengths


@dataclass(frozen=True, slots=True)
class PathForecast:
    """A step on one path.

    Args:
        path: The path.
        work: All that a rank computes, the optimizer included.
        peak: Its memory when most of it is taken.
        seconds: The least time.
    """

    path: PathName
    work: Work
    peak: PeakBytes
    seconds: StepSeconds


class DoesNotFitError(ValueError):
    """A step that a device cannot hold."""


def pairs_of(*, prompt: int, response: int, number: int) -> list[GroupLengths]:
    """A batch of pairs that are all of one length."""
    return [GroupLengths(prompt, (response, response))] * number


def forecast_path(
    model: PaperModel, path: PathName, lengths: Sequence[GroupLengths], device: DeviceProfile, *, num_ranks: int
) -> PathForecast:
    """Forecast a step.

    Args:
        model: The model, how it is trained, and in what.
        path: How log-probs are computed.
        lengths: The batch of one rank.
        device: The device of each rank.
        num_ranks: Among how many ranks parameters, gradients and optimizer state are shared.

    Returns:
        What it takes of a rank.

    Raises:
        ValueError: A path that the device does not run.
    """
    check_path(path, device)
    step, optimizer = model.step(path, lengths), optimizer_step(model, num_ranks)
    whole = [*step, Repeated(optimizer.window, 1, None, None)]
    states = [state for state in (model.state, model.reference_state) if state is not None]
    return PathForecast(
        path=path,
        work=total_work((each.window.work, each.times) for each in whole),
        peak=step_peak(model, step, optimizer, num_ranks),
        seconds=step_seconds(whole, device, dtype_name(model), gathered=states, num_ranks=num_ranks),
    )


def peak_bytes(
    model: PaperModel, path: PathName, lengths: Sequence[GroupLengths], device: DeviceProfile, *, num_ranks: int
) -> PeakBytes:
    """The peak of a step alone; arguments and errors as of ``forecast_path``."""
    check_path(path, device)
    return step_peak(model, model.step(path, lengths), optimizer_step(model, num_ranks), num_ranks)


def check_fits(peak: PeakBytes, device: DeviceProfile, what: str) -> None:
    """Refuse a step that does not fit, before anything is loaded.

    Args:
        peak: Of the step.
        device: The device.
        what: The step, for the message.

    Raises:
        DoesNotFitError: With how much is missing.
    """
    if peak.total > device.usable_bytes:
        raise DoesNotFitError(
            f"{what} needs {size(peak.total)} on each {device.name}, of which {size(device.usable_bytes)} can be used: "
            f"{size(peak.total - device.usable_bytes)} too much"
        )


def check_path(path: PathName, device: DeviceProfile) -> None:
    """Refuse a path that a device does not run.

    Raises:
        ValueError: FlexAttention on a CPU.
    """
    if path == "sparse" and device.kind == "cpu":
        raise ValueError(NO_FLEX_ON_CPU)


def dtype_name(model: PaperModel) -> str:
    """Name of the dtype of the weights, in which matrix products are computed."""
    return str(model.dtype).removeprefix("torch.")


def optimizer_step(model: PaperModel, num_ranks: int) -> OptimizerStep:
    """AdamW on the model's trained parameters."""
    return model.optimizer(num_ranks)


def step_peak(model: PaperModel, step: Sequence[Repeated], optimizer: OptimizerStep, num_ranks: int) -> PeakBytes:
    """The peak of a step, that of the optimizer included."""
    states = model.state, model.reference_state
    return peak_of(
        [*step, Repeated(optimizer.window, 1, None, None)],
        parameters=sum(state.num_bytes(num_ranks) for state in states if state is not None),
        optimizer_state=optimizer.state_bytes,
        in_flight=InFlight.of(*states, num_ranks),
        num_ranks=num_ranks,
    )

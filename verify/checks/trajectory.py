"""A few optimizer steps of the unpacked path, and its gradients before each.

Every subject is judged at the parameters of this one trajectory. After a step of its own each would have others, since
the first step of Adam is close to the signs of the gradients: an element that is rounding moves as far as any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from verify.cases import Case
from verify.checks.cases import rewrite
from verify.checks.gradient_yardsticks import PADDED_AND_EAGER, GradientYardstick, measure_gradients
from verify.checks.lora_weights import Weights, read_weights, weights_kept
from verify.groups import PreferenceGroup
from verify.model_state import Baseline
from verify.objective import Objective
from verify.tolerance import Policy
from verify.trained_gradients import trained_name

OptimizerName = Literal["AdamW", "SGD"]

_MOVED = 0.2
"""How far a step moves the LoRA tensors, relative to their own size: a gradient of the step before must show."""
_CLIPPED_TO = 0.5
"""Part of its global norm that a gradient is clipped to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What comes before one optimizer step.

    Args:
        weights: The LoRA tensors.
        micro_batches: The groups of each micro-batch.
        yardstick: Loss and gradients of the unpacked path on all of them.
    """

    weights: Weights
    micro_batches: tuple[tuple[PreferenceGroup, ...], ...]
    yardstick: GradientYardstick


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Steps of the unpacked path.

    Args:
        optimizer: What steps.
        steps: In order; the first has the tensors of the run.
    """

    optimizer: OptimizerName
    steps: tuple[Step, ...]


def batches_of(case: Case, other_token: Mapping[int, int]) -> tuple[tuple[tuple[PreferenceGroup, ...], ...], ...]:
    """The micro-batches of three steps: a case cut into 1 + 2 groups, then others of the same shapes, then the first.

    Those of the second step have other tokens, with the preferred responses as rejected ones; examples come in reverse
    order. Their rows are as long as those of the first step and divided otherwise. What is kept by the shape of a row
    is wrong there, and what is kept by its tokens is stale in the third step.

    Args:
        case: A case of distinct tokens, of two groups or more.
        other_token: What each of its tokens is rewritten to.

    Returns:
        For each step its micro-batches.
    """
    first = (case.groups[:1], case.groups[1:])
    second = tuple(
        tuple(replace(group, positives=group.negatives, negatives=group.positives) for group in groups)
        if case.kind != "examples"
        else groups[::-1]
        for groups in (rewrite(groups, other_token, other_token) for groups in first)
    )
    return first, second, first


def measure_trajectory(
    model: Any,
    case: Case,
    other_token: Mapping[int, int],
    optimizer: OptimizerName,
    *,
    dtype: str,
    objective: Objective,
    policy: Policy,
    seed: int,
) -> Trajectory:
    """Run the steps: gradients of the unpacked path, clipped by their global norm, then the optimizer.

    Args:
        model: The model; its LoRA tensors have the same bits afterwards.
        case: A case of distinct tokens.
        other_token: What each of its tokens is rewritten to.
        optimizer: What steps.
        dtype: Name of the dtype.
        objective: The objective, of the kind that the case asks for.
        policy: Factors and floors.
        seed: Seed of the passes.

    Returns:
        The steps.
    """
    steps = []
    batches = batches_of(case, other_token)
    with weights_kept(model):
        trained = {trained_name(name): p for name, p in model.named_parameters() if p.requires_grad}
        stepper = _optimizer(optimizer, list(trained.values()))
        for number, micro_batches in enumerate(batches):
            yardstick = measure_gradients(
                model,
                Baseline.read(model),
                replace(case, groups=tuple(group for groups in micro_batches for group in groups)),
                dtype=dtype,
                objective=objective,
                policy=policy,
                seed=seed,
                forms=PADDED_AND_EAGER,
            )
            steps.append(Step(weights=read_weights(model), micro_batches=micro_batches, yardstick=yardstick))
            if number + 1 < len(batches):
                _step(stepper, trained, yardstick)
    return Trajectory(optimizer=optimizer, steps=tuple(steps))


def _optimizer(name: OptimizerName, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if name == "AdamW":
        num_values = sum(parameter.numel() for parameter in parameters)
        rms = _norm(parameters) / math.sqrt(num_values)
        return torch.optim.AdamW(parameters, lr=_MOVED * rms)  # each element moves by about lr
    return torch.optim.SGD(parameters, lr=1.0)  # _step gives the gradient the length of the step


def _norm(parameters: list[torch.nn.Parameter]) -> float:
    return math.hypot(*(float(parameter.detach().double().norm()) for parameter in parameters))


def _step(
    optimizer: torch.optim.Optimizer, trained: Mapping[str, torch.nn.Parameter], yardstick: GradientYardstick
) -> None:
    for name, parameter in trained.items():
        parameter.grad = yardstick.gradients[name].to(parameter.device, parameter.dtype, copy=True)  # clipped in place
    parameters = list(trained.values())
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    torch.nn.utils.clip_grad_norm_(parameters, max_norm=_CLIPPED_TO * float(norm))
    if isinstance(optimizer, torch.optim.SGD):
        optimizer.param_groups[0]["lr"] = _MOVED * _norm(parameters) / (_CLIPPED_TO * float(norm))
    optimizer.step()
    optimizer.zero_grad()

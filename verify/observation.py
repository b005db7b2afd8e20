"""Observing a subject: policy and reference pass, objective, backward, all as float64 values on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from verify.groups import PreferenceGroup
from verify.model_state import restored_model
from verify.objective import DpoSigmoid
from verify.slots import SlotCount, count_slots
from verify.subject import Subject, SubjectError, check_logps, check_loss, gradient_support, owns_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one implementation computed on one case.

    Args:
        per_token_logps: Policy log-probs, one float64 vector per completion, in nats.
        ref_per_token_logps: The same with adapters off.
        rewards: float64 [completions], beta * (logp - ref_logp).
        margins: float64 [pairs], chosen minus rejected reward.
        loss: Mean over the groups, in nats.
        gradients: d loss / d LoRA tensor by name (``<module>.lora_A``), or None where they were not computed.
        gradients_absent_because: Reason where ``gradients`` is None.
        slots: Token slots of the policy pass; None for the oracle.
        loss_slots: Token slots of the subject's own ``loss``; None where the runner applied the objective.
        settings_put_back: Model settings that the subject left changed.
        elapsed_s: Wall time of all passes.
    """

    per_token_logps: tuple[Tensor, ...]
    ref_per_token_logps: tuple[Tensor, ...]
    rewards: Tensor
    margins: Tensor
    loss: Tensor
    gradients: Mapping[str, Tensor] | None
    gradients_absent_because: str = ""
    slots: SlotCount | None = None
    loss_slots: SlotCount | None = None
    settings_put_back: tuple[str, ...] = ()
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ObjectiveValues:
    """The objective applied to log-probs: loss (differentiable), rewards per completion."""

    loss: Tensor
    rewards: Tensor


Objective = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[PreferenceGroup], DpoSigmoid], ObjectiveValues]


@dataclass(slots=True)
class _Passes:
    logps: tuple[Tensor, ...]
    refs: tuple[Tensor, ...]
    rewards: Tensor
    loss: Tensor
    gradients: dict[str, Tensor] | None
    slots: SlotCount
    loss_slots: SlotCount | None = field(default=None)


def observe(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: DpoSigmoid,
    *,
    apply_objective: Objective,
    seed: int,
) -> Observation:
    """Run one subject on one case.

    Args:
        subject: The implementation.
        model: PEFT-wrapped causal LM; its LoRA tensors are the parameters that require grad.
        groups: The case's groups.
        objective: beta and label smoothing.
        apply_objective: The objective for subjects without their own loss.
        seed: Seed of torch's generator during the passes.

    Returns:
        The observation, in float64 on the CPU; values may be NaN, shapes are checked.

    Raises:
        SubjectError: The subject raised, or what it returned cannot be compared.
        WeightsChangedError: It changed the model's weights.
    """
    support = gradient_support(subject, model)
    start = time.perf_counter()
    with restored_model(model, subject.name, seed=seed) as restored:
        try:
            passes = _run_passes(subject, model, groups, objective, apply_objective, support.supported)
        except SubjectError:
            raise
        except Exception as error:
            raise SubjectError(f"subject {subject.name} raised {type(error).__name__}: {error}") from error
    return Observation(
        per_token_logps=passes.logps,
        ref_per_token_logps=passes.refs,
        rewards=passes.rewards,
        margins=pair_margins(passes.rewards, groups),
        loss=passes.loss,
        gradients=passes.gradients,
        gradients_absent_because=support.reason,
        slots=passes.slots,
        loss_slots=passes.loss_slots,
        settings_put_back=tuple(restored.settings),
        elapsed_s=time.perf_counter() - start,
    )


def _run_passes(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: DpoSigmoid,
    apply_objective: Objective,
    differentiable: bool,
) -> _Passes:
    own = owns_loss(subject)
    with torch.no_grad(), model.disable_adapter():
        refs = check_logps(subject.per_token_logps(model, groups), groups, subject=subject.name, differentiable=False)
    with torch.set_grad_enabled(differentiable), count_slots(model) as slots:
        logps = check_logps(
            subject.per_token_logps(model, groups),
            groups,
            subject=subject.name,
            differentiable=differentiable,
        )
    loss_slots = None
    if own:
        logps = tuple(logp.detach() for logp in logps)
        with torch.set_grad_enabled(differentiable), count_slots(model) as loss_slots:
            output = subject.loss(model, groups, objective)  # type: ignore[attr-defined]
        loss, rewards = check_loss(
            output, subject=subject.name, num_completions=len(logps), differentiable=differentiable
        )
        del output
    else:
        values = apply_objective(logps, refs, groups, objective)
        loss, rewards = values.loss, values.rewards
    gradients = None
    if differentiable:
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {
            lora_tensor_name(name): to_float64(parameter.grad)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and parameter.grad is not None
        }
    return _Passes(
        tuple(map(to_float64, logps)),
        tuple(map(to_float64, refs)),
        to_float64(rewards),
        to_float64(loss),
        gradients,
        slots,
        loss_slots,
    )


def to_float64(tensor: Tensor) -> Tensor:
    """A detached float64 copy on the CPU; exact for every narrower dtype."""
    return tensor.detach().to("cpu", torch.float64, copy=True)


def lora_tensor_name(parameter_name: str) -> str:
    """Name of a LoRA tensor without PEFT's wrapping.

    ``base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight`` becomes ``model.layers.0.mlp.up_proj.lora_A``.
    """
    name = parameter_name.removeprefix("base_model.model.").removesuffix(".weight")
    return name.removesuffix(".default")


def pair_margins(rewards: Tensor, groups: Sequence[PreferenceGroup]) -> Tensor:
    """Chosen minus rejected reward of each 1+1 group.

    Args:
        rewards: [completions], group by group, positives before negatives.
        groups: The groups.

    Returns:
        [pairs].

    Raises:
        ValueError: A group that is not one positive and one negative.
    """
    for index, group in enumerate(groups):
        if len(group.positives) != 1 or len(group.negatives) != 1:
            raise ValueError(
                f"group {index} has {len(group.positives)} positives and {len(group.negatives)} negatives; "
                "DPO compares one of each"
            )
    return rewards[0::2] - rewards[1::2]

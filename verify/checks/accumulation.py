"""Gradients of a subject, accumulated over micro-batches as a trainer does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.checks.bench import Bench, Groups
from verify.checks.shares import shares
from verify.objective import Objective, Preference
from verify.passes import reference_logps
from verify.returned_values import backward_done, check_logps, check_loss
from verify.subject import SubjectError, owns_loss
from verify.subjects.oracle import apply_objective
from verify.trained_gradients import to_float64, trained_name


class BackwardError(SubjectError):
    """What a subject computed raised in the backward pass that the runner ran."""


@dataclass(frozen=True, eq=False, slots=True)
class Accumulated:
    """What a batch gave.

    Args:
        loss: Its loss, in nats.
        gradients: Of each LoRA tensor that has one, float64.
    """

    loss: float
    gradients: dict[str, Tensor]


def accumulated(bench: Bench, micro_batches: Sequence[Groups], objective: Objective) -> Accumulated:
    """Run micro-batches one after the other; ``.grad`` holds the sum of their gradients, each times its share.

    A subject that runs backward itself finds no gradient before each of its calls, as the contract says, and what it
    leaves is added up outside.

    Args:
        bench: The subject and its model.
        micro_batches: The groups of each.
        objective: The objective.

    Returns:
        Loss and gradients of the batch; none is left on the model.

    Raises:
        SubjectError: The subject raised, or what it returned is no loss.
    """
    total, held = 0.0, dict[str, Tensor]()
    of_batch = shares(objective.name, micro_batches)
    bench.drop_gradients()
    try:
        for groups, share in zip(micro_batches, of_batch, strict=True):
            loss, done = _forward(bench, groups, objective)
            total += share * float(loss.detach())
            if done:
                _set_aside(bench.model, share, held)
            else:
                _backward(bench, share * loss)
        _set_aside(bench.model, 1.0, held)
    finally:
        bench.drop_gradients()
    return Accumulated(total, held)


def _backward(bench: Bench, loss: Tensor) -> None:
    try:
        bench.call(loss.backward, seeded=False)
    except SubjectError as error:
        raise BackwardError(str(error)) from error.__cause__


def _set_aside(model: Any, share: float, held: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.grad is not None:
            key, gradient = trained_name(name), share * to_float64(parameter.grad)
            held[key] = held[key] + gradient if key in held else gradient
            parameter.grad = None


def _forward(bench: Bench, groups: Groups, objective: Objective) -> tuple[Tensor, bool]:
    """The loss of a micro-batch, and whether its gradients are there already."""
    subject, model = bench.subject, bench.model
    with torch.enable_grad():
        if not owns_loss(subject):
            return bench.call(lambda: _judged_loss(bench, groups, objective)), False
        before = [parameter.grad is not None for parameter in model.parameters()]
        output = bench.call(lambda: subject.loss(model, groups, objective))  # type: ignore[attr-defined]
        num_rewards = sum(len(group.completions) for group in groups) if isinstance(objective, Preference) else 0
        loss, _ = check_loss(output, subject=subject.name, num_completions=num_rewards, differentiable=True)
        done = backward_done(output, subject.name)
    if done and any(before):
        raise SubjectError(
            f"subject {subject.name}: loss(...).backward_done is True for one micro-batch and not for that before it"
        )
    return loss, done


def _judged_loss(bench: Bench, groups: Groups, objective: Objective) -> Tensor:
    """The runner's objective on the subject's log-probs."""
    subject, model, refs = bench.subject, bench.model, tuple[Tensor, ...]()
    if isinstance(objective, Preference):
        with torch.no_grad():
            computed = reference_logps(subject, model, groups, objective.reference)
            refs = check_logps(computed, groups, subject=subject.name, differentiable=False)
            refs = tuple(ref.clone() for ref in refs)  # a subject may write its next result into the same buffers
    logps = check_logps(subject.per_token_logps(model, groups), groups, subject=subject.name, differentiable=True)
    return apply_objective(logps, refs, groups, objective).loss

"""The passes of one subject on one case: policy and frozen policy, objective, backward."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from verify.frozen_policy import CachedLogps, FrozenPolicy, SeparateModel
from verify.groups import PreferenceGroup
from verify.objective import Objective, Preference, RewardModel, Sft
from verify.returned_values import backward_done, check_logps, check_loss, check_rewards
from verify.router_balance import NO_BALANCE, RoutedSubject, RouterBalance, check_balance
from verify.slots import SlotCount, count_slots
from verify.subject import Subject, computes_loss, owns_loss
from verify.trained_gradients import to_float64, trained_gradients


@dataclass(frozen=True, slots=True)
class PhaseSlots:
    """Token slots of one policy pass and one reference pass.

    Args:
        phase: "log-probs" (calls of ``per_token_logps``), "rewards" (one call of ``rewards``) or "loss" (one call of
            the subject's own ``loss``).
        count: What passed the embedding.
    """

    phase: str
    count: SlotCount


@dataclass(frozen=True, slots=True)
class ObjectiveValues:
    """The objective applied to log-probs: loss (differentiable), rewards per completion (none under SFT)."""

    loss: Tensor
    rewards: Tensor


ApplyObjective = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[PreferenceGroup], Objective], ObjectiveValues]


@dataclass(slots=True)
class Passes:
    """What the passes of one subject computed, checked for shape.

    Args:
        logps: Log-probs of the policy, one vector for each completion, in nats; empty under a reward model.
        refs: Those of the frozen policy; empty under an objective without one.
        rewards: [completions]; empty under SFT.
        loss: The objective, in nats.
        gradients: By name; None where they were not asked for.
        balance: Of the routers, as in :class:`verify.observation.Observation`.
        router_scores: Likewise.
        phases: Token slots of each phase.
        elapsed_s: Wall time of all passes.
        logps_apart: Whether the log-probs come from other passes than a loss of the subject's own.
    """

    logps: tuple[Tensor, ...]
    refs: tuple[Tensor, ...]
    rewards: Tensor
    loss: Tensor
    gradients: dict[str, Tensor] | None
    balance: RouterBalance
    router_scores: tuple[Tensor, ...]
    phases: tuple[PhaseSlots, ...]
    elapsed_s: float
    logps_apart: bool


def run_passes(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: Objective,
    apply_objective: ApplyObjective,
    differentiable: bool,
) -> Passes:
    """Run policy and frozen policy, the objective and backward.

    Args:
        subject: The implementation.
        model: The causal LM or reward model.
        groups: The groups of the case.
        objective: The objective of the case.
        apply_objective: The objective for subjects without their own loss.
        differentiable: Whether gradients are wanted.

    Returns:
        What was computed; all values float64 on the CPU.

    Raises:
        SubjectError: What the subject returned cannot be compared.
    """
    start = time.perf_counter()
    phases: list[PhaseSlots] = []
    balance, apart = NO_BALANCE, False
    with torch.set_grad_enabled(differentiable):
        logps: _Logps | None
        if isinstance(objective, RewardModel):
            logps = _Logps((), ())
            loss, rewards, done = _reward_model(
                subject, model, groups, objective, apply_objective, differentiable, phases
            )
            gradients = trained_gradients(loss, model, done=done) if differentiable else None
        elif owns_loss(subject):
            loss, rewards, logps, balance, done = _own_loss(subject, model, groups, objective, differentiable, phases)
            gradients = trained_gradients(loss, model, done=done) if differentiable else None
            apart = logps is None
            if logps is None:
                logps = _policy_and_reference(subject, model, groups, objective, False, phases)
        else:
            logps = _policy_and_reference(subject, model, groups, objective, differentiable, phases)
            values = apply_objective(logps.policy, logps.reference, groups, objective)
            loss, rewards = values.loss, values.rewards
            if logps.router_loss is not None:
                loss = loss + objective.router_aux_loss_coef * logps.router_loss
                balance = logps.balance
            gradients = trained_gradients(loss, model) if differentiable else None
    elapsed_s = time.perf_counter() - start
    return Passes(
        tuple(map(to_float64, logps.policy)),
        tuple(map(to_float64, logps.reference)),
        to_float64(rewards),
        to_float64(loss),
        gradients,
        balance,
        logps.router_scores,
        tuple(phases),
        elapsed_s,
        apart,
    )


@dataclass(frozen=True, slots=True)
class _Logps:
    policy: tuple[Tensor, ...]
    reference: tuple[Tensor, ...]
    router_loss: Tensor | None = None
    balance: RouterBalance = NO_BALANCE
    router_scores: tuple[Tensor, ...] = ()


def _policy_and_reference(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: Objective,
    differentiable: bool,
    phases: list[PhaseSlots],
) -> _Logps:
    reference: object = None
    routed = RoutedSubject(subject) if objective.router_aux_loss_coef and not owns_loss(subject) else None
    running = subject if routed is None else routed
    with count_slots(model, groups) as slots:
        if isinstance(objective, Preference):
            reference = _copied(reference_logps(running, model, groups, objective.reference, slots))
        with torch.set_grad_enabled(differentiable):
            policy = running.per_token_logps(model, groups)
    phases.append(PhaseSlots("log-probs", slots))
    logps = _Logps(
        policy=check_logps(policy, groups, subject=subject.name, differentiable=differentiable),
        reference=()
        if reference is None
        else check_logps(reference, groups, subject=subject.name, differentiable=False),
    )
    if routed is None:
        return logps
    *of_reference, of_policy = routed.passes
    return replace(
        logps,
        router_loss=of_policy.router_loss,
        balance=of_policy.router_balance,
        router_scores=(of_policy.router_scores, *(each.router_scores for each in of_reference)),
    )


def _reward_model(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: RewardModel,
    apply_objective: ApplyObjective,
    differentiable: bool,
    phases: list[PhaseSlots],
) -> tuple[Tensor, Tensor, bool]:
    """Loss and rewards, by the subject's own loss or from its rewards, and whether backward was done."""
    if computes_loss(subject, objective.name):
        loss, rewards, _, _, done = _own_loss(subject, model, groups, objective, differentiable, phases)
        return loss, rewards, done
    with count_slots(model, groups) as slots:
        given = subject.rewards(model, groups)  # type: ignore[attr-defined]
    phases.append(PhaseSlots("rewards", slots))
    checked = check_rewards(given, groups, subject=subject.name, differentiable=differentiable)
    values = apply_objective(checked, (), groups, objective)
    return values.loss, values.rewards, False


def reference_logps(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    frozen: FrozenPolicy,
    slots: SlotCount | None = None,
) -> object:
    """What a subject computes for the frozen policy, or what was computed before.

    Args:
        subject: The subject.
        model: The policy.
        groups: The groups.
        frozen: The frozen policy.
        slots: A count at the policy, to which what another model is fed is added.

    Returns:
        Whatever the subject returned.
    """
    if isinstance(frozen, CachedLogps):
        return frozen.look_up(groups)
    with torch.no_grad(), frozen.standing_in(model) as stand_in:
        if stand_in is model or slots is None:
            return subject.per_token_logps(stand_in, groups)
        with count_slots(stand_in) as of_other:
            logps = subject.per_token_logps(stand_in, groups)
        slots.add(of_other)
        return logps


def _copied(logps: object) -> object:
    """Copies, since a subject may write its next result into the same buffers."""
    if not isinstance(logps, list | tuple):
        return logps
    return [logp.clone() if isinstance(logp, Tensor) else logp for logp in logps]


def _own_loss(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: Objective,
    differentiable: bool,
    phases: list[PhaseSlots],
) -> tuple[Tensor, Tensor, _Logps | None, RouterBalance, bool]:
    """Loss, rewards, the log-probs and the balance of routers that came with them, and whether backward was done."""
    frozen = objective.reference if isinstance(objective, Preference) else None
    other = count_slots(frozen.model) if isinstance(frozen, SeparateModel) else nullcontext()
    with count_slots(model, groups) as slots, other as of_other:
        output = subject.loss(model, groups, objective)  # type: ignore[attr-defined]
    if of_other is not None:
        slots.add(of_other)
    phases.append(PhaseSlots("loss", slots))
    num_completions = 0 if isinstance(objective, Sft) else sum(len(group.completions) for group in groups)
    loss, rewards = check_loss(
        output, subject=subject.name, num_completions=num_completions, differentiable=differentiable
    )
    done = backward_done(output, subject.name)
    balance = check_balance(output, subject.name) if objective.router_aux_loss_coef else NO_BALANCE
    if isinstance(objective, RewardModel):
        return loss, rewards, None, balance, done
    given = getattr(output, "per_token_logps", None), getattr(output, "ref_per_token_logps", None)
    if given[0] is None or (given[1] is None and not isinstance(objective, Sft)):
        return loss, rewards, None, balance, done
    if isinstance(objective, Sft):
        logps = check_logps(given[0], groups, subject=subject.name, differentiable=False)
        return loss, rewards, _Logps(logps, ()), balance, done
    policy, reference = (check_logps(part, groups, subject=subject.name, differentiable=False) for part in given)
    return loss, rewards, _Logps(policy, reference), balance, done

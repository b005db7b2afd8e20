"""Observing a subject: policy and reference pass, objective, backward, all as float64 values on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from verify.frozen_policy import CachedLogps, FrozenPolicy, SeparateModel
from verify.groups import PreferenceGroup
from verify.model_state import Baseline, restored_model
from verify.module_walk import named_modules, named_parameters
from verify.objective import Objective, Preference, RewardModel, Sft
from verify.router_balance import NO_BALANCE, RoutedSubject, RouterBalance, check_balance
from verify.slots import SlotCount, count_slots
from verify.subject import (
    Subject,
    SubjectError,
    backward_done,
    check_logps,
    check_loss,
    check_rewards,
    computes_loss,
    gradient_support,
    owns_loss,
    said_by,
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one implementation computed on one case.

    Args:
        per_token_logps: Policy log-probs of the supervised tokens, one float64 vector per completion, in nats; empty
            under a reward model.
        ref_per_token_logps: The same with adapters off; empty under an objective without a frozen policy.
        rewards: float64 [completions], beta * (logp - ref_logp), or what the head of a reward model says; empty under
            SFT.
        margins: float64 [pairs], positive minus negative reward of every pair of each group; empty under SFT.
        loss: The objective, in nats.
        gradients: d loss / d LoRA tensor by name (``<module>.lora_A``), and d loss / d ``score.weight`` of a reward
            model; or d loss / d weight by its name in the model, where every weight is trained. None where they were
            not computed.
        looked_up: Name of the embedding where it is looked up and no more, so that rows of tokens that are not fed have
            no gradient; "" where it is tied to the head, or unknown.
        gradients_absent_because: Reason where ``gradients`` is None.
        balance: That of the routers in the policy's pass; empty where their loss is no part of the objective, or the
            subject does not say.
        router_scores: What routers made of each token before the softmax, in the pass of the policy and in that of a
            frozen one: float64, [layers, tokens, experts]; empty but for forms of the unpacked path.
        phases: Token slots of each phase; empty for the oracle.
        settings_put_back: Model settings that the subject left changed.
        elapsed_s: Wall time of all passes.
    """

    per_token_logps: tuple[Tensor, ...]
    ref_per_token_logps: tuple[Tensor, ...]
    rewards: Tensor
    margins: Tensor
    loss: Tensor
    gradients: Mapping[str, Tensor] | None
    looked_up: str = ""
    gradients_absent_because: str = ""
    balance: RouterBalance = NO_BALANCE
    router_scores: tuple[Tensor, ...] = ()
    phases: tuple[PhaseSlots, ...] = ()
    settings_put_back: tuple[str, ...] = ()
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ObjectiveValues:
    """The objective applied to log-probs: loss (differentiable), rewards per completion (none under SFT)."""

    loss: Tensor
    rewards: Tensor


ApplyObjective = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[PreferenceGroup], Objective], ObjectiveValues]


@dataclass(slots=True)
class _Passes:
    logps: tuple[Tensor, ...]
    refs: tuple[Tensor, ...]
    rewards: Tensor
    loss: Tensor
    gradients: dict[str, Tensor] | None
    balance: RouterBalance
    router_scores: tuple[Tensor, ...]
    phases: tuple[PhaseSlots, ...]
    elapsed_s: float


def observe(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: Objective,
    *,
    apply_objective: ApplyObjective,
    seed: int,
    baseline: Baseline | None = None,
) -> Observation:
    """Run one subject on one case.

    Args:
        subject: The implementation.
        model: The causal LM or reward model; what is trained of it are the parameters that require grad.
        groups: The case's groups.
        objective: The objective of the case.
        apply_objective: The objective for subjects without their own loss.
        seed: Seed of torch's generator during the passes.
        baseline: What the model must be afterwards; what it is now if None.

    Returns:
        The observation, in float64 on the CPU; values may be NaN, shapes are checked.

    Raises:
        SubjectError: The subject raised, or what it returned cannot be compared.
        WeightsChangedError: It changed the model's weights.
    """
    with restored_model(model, subject.name, seed=seed, baseline=baseline) as restored:
        try:
            support = gradient_support(subject, model)
            passes = _run_passes(subject, model, groups, objective, apply_objective, support.supported)
        except SubjectError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a script that exits must not end the run with its own status
            raise SubjectError(f"subject {subject.name} raised {said_by(error)}") from error
    return Observation(
        per_token_logps=supervised_logps(passes.logps, groups) if passes.logps else (),
        ref_per_token_logps=supervised_logps(passes.refs, groups) if passes.refs else (),
        rewards=passes.rewards,
        margins=passes.rewards if isinstance(objective, Sft) else pair_margins(passes.rewards, groups),
        loss=passes.loss,
        gradients=passes.gradients,
        looked_up=_looked_up(model) if passes.gradients else "",
        gradients_absent_because=support.reason,
        balance=passes.balance,
        router_scores=passes.router_scores,
        phases=passes.phases,
        settings_put_back=tuple(restored.settings),
        elapsed_s=passes.elapsed_s,
    )


def _run_passes(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: Objective,
    apply_objective: ApplyObjective,
    differentiable: bool,
) -> _Passes:
    start = time.perf_counter()
    phases: list[PhaseSlots] = []
    balance = NO_BALANCE
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
    return _Passes(
        tuple(map(to_float64, logps.policy)),
        tuple(map(to_float64, logps.reference)),
        to_float64(rewards),
        to_float64(loss),
        gradients,
        balance,
        logps.router_scores,
        tuple(phases),
        elapsed_s,
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
    with count_slots(model) as slots:
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
    with count_slots(model) as slots:
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
    with count_slots(model) as slots, other as of_other:
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


def trained_gradients(loss: Tensor, model: Any, *, done: bool = False) -> dict[str, Tensor]:
    """Run backward and read the gradient of every tensor that is trained.

    Args:
        loss: The loss.
        model: The model.
        done: Whether backward was done already.

    Returns:
        Gradients by name; float64 on the CPU.

    Raises:
        SubjectError: A gradient was there before backward, or none is there although it was done.
    """
    trained = [(name, p) for name, p in named_parameters(named_modules(model)) if p.requires_grad]
    filled = [name for name, parameter in trained if parameter.grad is not None]
    if done and not filled:
        raise SubjectError("backward_done is True, but nothing that is trained has a gradient")
    if filled and not done:
        raise SubjectError(
            f"the gradient of {trained_name(filled[0])} was there before backward: gradients must come from the "
            "loss that is returned, and the runner calls backward (or set backward_done)"
        )
    if not done:
        loss.backward()  # type: ignore[no-untyped-call]
    return {trained_name(name): to_float64(parameter.grad) for name, parameter in trained if parameter.grad is not None}


def _looked_up(model: Any) -> str:
    """As in :class:`Observation`."""
    weight = getattr(model.get_input_embeddings(), "weight", None)
    names = [
        f"{prefix}.{name}"
        for prefix, module in named_modules(model)
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter is weight
    ]
    return trained_name(names[0]) if len(names) == 1 else ""


def to_float64(tensor: Tensor) -> Tensor:
    """A detached dense float64 copy on the CPU; exact for every narrower dtype."""
    values = tensor.detach()
    if values.layout is not torch.strided:  # the gradient of nn.Embedding(sparse=True)
        values = values.to_dense()
    return values.to("cpu", torch.float64, copy=True)


def trained_name(parameter_name: str) -> str:
    """Name of a trained tensor without PEFT's wrapping.

    ``base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight`` becomes ``model.layers.0.mlp.up_proj.lora_A``.
    Any other, a weight or the head of a reward model, keeps the name that it has in the model.
    """
    name = parameter_name.removeprefix("base_model.model.")
    return name.removesuffix(".weight").removesuffix(".default") if ".lora_" in name else name


def supervised_logps(logps: Sequence[Tensor], groups: Sequence[PreferenceGroup]) -> tuple[Tensor, ...]:
    """The log-probs of the supervised tokens; what stands at others is not looked at.

    Args:
        logps: One vector per completion, a value for each of its tokens.
        groups: The groups.

    Returns:
        One vector per completion, a value for each of its supervised tokens.
    """
    if not any(group.completion_masks for group in groups):
        return tuple(logps)
    places = [supervised for group in groups for supervised in group.supervised]
    return tuple(logp[list(supervised)] for logp, supervised in zip(logps, places, strict=True))


def pair_margins(rewards: Tensor, groups: Sequence[PreferenceGroup]) -> Tensor:
    """Positive minus negative reward of each pair of each group.

    Args:
        rewards: [completions], group by group, positives before negatives.
        groups: The groups; a negative in each.

    Returns:
        [pairs]: group by group, positive by positive, negative by negative.

    Raises:
        ValueError: A group without a negative.
    """
    margins, start = [], 0
    for index, group in enumerate(groups):
        num_positives, stop = len(group.positives), start + len(group.completions)
        if not group.negatives:
            raise ValueError(f"group {index} has no negative: there is nothing to compare its positives with")
        positives, negatives = rewards[start : start + num_positives], rewards[start + num_positives : stop]
        margins.append((positives[:, None] - negatives[None, :]).flatten())
        start = stop
    return torch.cat(margins)


def all_supervised(groups: Sequence[PreferenceGroup]) -> list[PreferenceGroup]:
    """Groups of the same shape that have the supervised tokens only, since observations hold no others.

    Args:
        groups: The groups of a case.

    Returns:
        As many groups; their token ids mean nothing.
    """
    return [
        PreferenceGroup(
            (0,),
            tuple((index,) * length for index, length in enumerate(group.num_supervised[: len(group.positives)])),
            tuple((index,) * length for index, length in enumerate(group.num_supervised[len(group.positives) :], 1000)),
        )
        for group in groups
    ]

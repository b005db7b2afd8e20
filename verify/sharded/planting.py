"""Whether a fault can show in a run, and planting those that are none of the stages: other weights, another subject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from verify.frozen_policy import FrozenAdapter, ReferenceName, SeparateModel
from verify.objective import REWARD_MODEL, ObjectiveName
from verify.sharded.bench import Bench
from verify.sharded.checks import CHECKS
from verify.sharded.faults import FrozenWeights, ShardedFault
from verify.sharded.models import PolicyAndFrozen
from verify.subjects.sharded import reshard_all
from verify.training import TrainName

_WRAPPED = "base_model.model."
_TRAINED = "default"
"""Name of the adapter that is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlanted:
    """A fault that a run could not show.

    Args:
        name: Its name.
        precision: Name of the precision.
        reason: Why not.
    """

    name: str
    precision: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a fault would be planted in.

    Args:
        objective: Name of the objective of the case.
        reference: The frozen policy of the run.
        train: What is trained.
        micro_size: Most groups of a micro-batch.
        is_repeatable: Whether passes give the same bits again.
        dummy_learns: Whether the value of a dummy call has a gradient.
        has_cached: Whether the subject ran over a cached frozen policy.
    """

    objective: ObjectiveName
    reference: ReferenceName
    train: TrainName
    micro_size: int
    is_repeatable: bool
    dummy_learns: bool
    has_cached: bool


def why_not_planted(fault: ShardedFault, ground: Ground) -> str:
    """Why a fault cannot be seen in a run; "" where it can.

    Args:
        fault: The fault.
        ground: What it would be planted in.

    Returns:
        The reason, in words for a note.
    """
    is_reward_model = ground.objective == REWARD_MODEL
    if fault.of == "reward models" and not is_reward_model:
        return f"no head is read under {ground.objective}"
    if fault.of == "frozen policies" and is_reward_model:
        return "a reward model has no frozen policy"
    if fault.frozen and (why := _why_no_other_weights(fault.frozen, ground)):
        return why
    if ground.micro_size < fault.micro_size:
        return "the subject makes a call for each group"
    if "parity/cached" in fault.checks and not ground.has_cached:
        return "the subject takes no cached frozen policy"
    if not ground.is_repeatable and all(CHECKS[name].compares_bits for name in fault.checks):
        return "the subject gives other bits from run to run"
    if fault.needs_dummy_gradient and not ground.dummy_learns:
        return f"the loss of a dummy call has no gradient under {ground.objective} with these parameters"
    return ""


def _why_no_other_weights(frozen: FrozenWeights, ground: Ground) -> str:
    if ground.reference == "adapters-off":
        return "the frozen policy has no weights of its own: it is the model with its adapters off"
    if frozen == "trained" and (ground.reference, ground.train) == ("separate-model", "lora"):
        return "the frozen policy is a model without adapters, and nothing else is trained"
    if frozen == "without adapters" and ground.train == "all":
        return "no model of the run has adapters"
    if frozen == "without adapters" and ground.reference == "cached":
        return "no frozen policy is run"
    return ""


@contextmanager
def planted_in(bench: Bench, fault: ShardedFault) -> Iterator[Bench]:
    """A bench on which a fault is planted, while the context is open; the stages of a fault are not put on it here.

    Args:
        bench: The bench.
        fault: A fault that shows there.

    Yields:
        The bench to run the checks on.
    """
    if fault.instead is not None:
        yield replace(bench, subject=fault.instead(bench.subject), runs={})
    elif not fault.frozen:
        yield bench
    elif bench.is_cached:
        values = iter(bench.yardstick.witness.per_token_logps)
        table = [tuple(next(values) for _ in group.completions) for group in bench.scenario.case.groups]
        yield replace(bench, table=table, runs={})
    else:
        with _weights_of(fault.frozen, bench.sharded_models):
            yield replace(bench, runs={})


@contextmanager
def _weights_of(frozen: FrozenWeights, models: PolicyAndFrozen) -> Iterator[None]:
    """The frozen policy with other weights while the context is open. Shards are copied, nothing is gathered."""
    for model in models.models:
        reshard_all(model)
    copied = list(_copied(frozen, models))
    before = [weight.detach().clone() for weight, _ in copied]
    try:
        with torch.no_grad():
            for weight, source in copied:
                weight.copy_(source)
        yield
    finally:
        for model in models.models:
            reshard_all(model)
        with torch.no_grad():
            for (weight, _), kept in zip(copied, before, strict=True):
                weight.copy_(kept)


def _copied(frozen: FrozenWeights, models: PolicyAndFrozen) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Weights of the frozen policy, and what is written into each."""
    named = dict(models.policy.named_parameters())
    if isinstance(models.frozen, FrozenAdapter):
        infix = f".{models.frozen.adapter}."
        for name, weight in named.items():
            if infix in name and frozen == "trained":
                yield weight, named[name.replace(infix, f".{_TRAINED}.")]
            elif infix in name and ".lora_B." in name:
                yield weight, torch.zeros_like(weight)
    if isinstance(models.frozen, SeparateModel):
        own = {name.removeprefix(_WRAPPED).replace(".base_layer.", "."): weight for name, weight in named.items()}
        yield from ((weight, own[name]) for name, weight in models.frozen.model.named_parameters())


def notes_on_not_planted(not_planted: Sequence[NotPlanted], precisions: Sequence[str]) -> list[str]:
    """A note for each reason, with the faults that were left out for it, and where that was not so in all precisions.

    Args:
        not_planted: What was left out.
        precisions: Those of the run.

    Returns:
        The notes.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for each in not_planted:
        found.setdefault((each.reason, each.name), []).append(each.precision)
    names: dict[str, list[str]] = {}
    for (reason, name), of_precisions in found.items():
        where = "" if len(of_precisions) == len(precisions) else f" in {', '.join(of_precisions)}"
        names.setdefault(reason, []).append(name + where)
    return [f"not planted, as {reason}: {', '.join(of_reason)}" for reason, of_reason in names.items()]

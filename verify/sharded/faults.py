"""Faults of sharded training, each a stage replaced by value, and harmless changes that must not be taken for one.

Every fault imitates a mistake that trainers have made or that a step invites; of the checks named beside it one has to
catch it, in every precision of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from verify.groups import PreferenceGroup
from verify.subject import Subject
from verify.subjects.sharded import HONEST, ShardedStages, Units

FrozenWeights = Literal["", "trained", "without adapters"]
"""What the frozen policy computes with in place of its own weights: those that are trained, or the bare model's."""
FaultOf = Literal["any step", "frozen policies", "reward models"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedFault:
    """A wrong step.

    Args:
        name: Its name.
        what: What is wrong.
        imitates: Where it comes from.
        stages: The stages with one replaced.
        checks: Those that can see it, of which one at least has to catch it. In bfloat16 the budgets of parity leave
            room for some.
        micro_size: Groups that a micro-batch has to have at most, for it to show.
        of: What a step needs to have for it to show.
        frozen: Other weights of the frozen policy; "" for its own.
        instead: What takes the place of the subject.
        needs_dummy_gradient: Whether it shows only where the value of a dummy call has a gradient.
    """

    name: str
    what: str
    imitates: str
    stages: ShardedStages
    checks: tuple[str, ...]
    micro_size: int = 1
    of: FaultOf = "any step"
    frozen: FrozenWeights = ""
    instead: Callable[[Subject], Subject] | None = None
    needs_dummy_gradient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmlessChange:
    """Another step that is right.

    Args:
        name: Its name.
        what: What is other.
        stages: The stages.
        reshard_after_forward: As in ``shard``.
    """

    name: str
    what: str
    stages: ShardedStages
    reshard_after_forward: bool = True


def _mean_of_rank_means(units: Units) -> float:
    return units.micro_batch / max(1, units.rank)


def _mean_of_micro_batches(units: Units) -> float:
    return units.world_size * units.rank / units.batch / units.micro_batches


def _without_world_size(units: Units) -> float:
    return units.micro_batch / units.batch


def _world_size_twice(units: Units) -> float:
    return units.micro_batch / units.batch * units.world_size**2


def _local_index(places: Sequence[int], num_before: int) -> Sequence[int]:
    return range(num_before, num_before + len(places))


def _full_ones_only(places: Sequence[int], size: int) -> Sequence[Sequence[int]]:
    return [places[start : start + size] for start in range(0, len(places) - size + 1, size)]


def _first_again(num_groups: int, world_size: int) -> Sequence[Sequence[int]]:
    """As DistributedSampler fills the last round up: of five groups and two ranks, 0 2 4 and 1 3 0."""
    rounds = -(-num_groups // world_size)
    return [
        [place % num_groups for place in range(rank, rounds * world_size, world_size)] for rank in range(world_size)
    ]


def _filled_up(num_groups: int, rank: int, world_size: int) -> Sequence[int]:
    return _first_again(num_groups, world_size)[rank]


def _clip_own_shards(model: nn.Module, max_norm: float) -> float:
    """By the norm of this rank's shards, as whoever takes ``.grad`` for the gradient does."""
    gradients: list[Any] = [p.grad.to_local() for p in model.parameters() if p.grad is not None]  # type: ignore[attr-defined]
    norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
    for gradient in gradients:
        gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


def _mean_of_means(total: float, count: int) -> float:
    own = torch.tensor([total / count, 1.0] if count else [0.0, 0.0], dtype=torch.float64)
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, own)
    summed = torch.stack(of_ranks).sum(0)
    return float(summed[0] / summed[1])


def _kept(model: nn.Module, value: Callable[[], Tensor]) -> None:
    (value() * 1e-3).backward()  # type: ignore[no-untyped-call]


def _times_zero(model: nn.Module, value: Callable[[], Tensor]) -> None:
    (value() * 0).backward()  # type: ignore[no-untyped-call]


def _from_before_sharding(model: nn.Module) -> list[nn.Parameter]:
    return [nn.Parameter(p.detach().clone()) for p in model.parameters() if p.requires_grad]


class _EarlyOnLastRank:
    """A subject, but that responses of the last rank end one token early; those of one token stay."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subject, name)
        if name not in ("loss", "rewards") or dist.get_rank() != dist.get_world_size() - 1:
            return found
        return lambda model, groups, *others: found(model, list(map(_ending_early, groups)), *others)

    @property
    def name(self) -> str:
        return self._subject.name

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> Sequence[Tensor]:
        return self._subject.per_token_logps(model, groups)


def _ending_early(group: PreferenceGroup) -> PreferenceGroup:
    positives, negatives = (tuple(ids[:-1] or ids for ids in side) for side in (group.positives, group.negatives))
    return replace(group, positives=positives, negatives=negatives, completion_masks=())


FAULTS: tuple[ShardedFault, ...] = (
    ShardedFault(
        name="local-denominators",
        what="each rank divides by its own count, and ranks are averaged",
        imitates="DDP and FSDP average gradients, so a mean over the local batch looks right until counts differ",
        stages=replace(HONEST, share=_mean_of_rank_means),
        checks=("parity", "reduction"),
    ),
    ShardedFault(
        name="mean-of-micro-batches",
        what="micro-batches of uneven size count alike",
        imitates="the gradient accumulation fault that transformers fixed in October 2024, within each rank",
        stages=replace(HONEST, share=_mean_of_micro_batches),
        checks=("parity", "reduction"),
        micro_size=2,
    ),
    ShardedFault(
        name="missing-world-size-factor",
        what="the share of the global mean is not multiplied by the world size, though ranks are averaged",
        imitates="a global denominator put in without looking at what the wrapper divides by",
        stages=replace(HONEST, share=_without_world_size),
        checks=("parity", "reduction"),
    ),
    ShardedFault(
        name="extra-world-size-factor",
        what="the world size is multiplied in twice",
        imitates="a trainer and its accelerator that both undo the average",
        stages=replace(HONEST, share=_world_size_twice),
        checks=("parity", "reduction"),
    ),
    ShardedFault(
        name="cached-reference-by-local-index",
        what="cached values of the frozen policy are read by where a group stands on its rank",
        imitates="values that were gathered in the order of ranks, or kept in a list beside a sampler that shards",
        stages=replace(HONEST, reference_places=_local_index),
        checks=("parity/cached",),
        of="frozen policies",
    ),
    ShardedFault(
        name="frozen-policy-is-trained",
        what="the frozen policy computes with the weights that are trained",
        imitates="a frozen copy that shares tensors with the policy or is taken in each step; a cache of its values",
        stages=HONEST,
        checks=("parity",),
        of="frozen policies",
        frozen="trained",
    ),
    ShardedFault(
        name="frozen-policy-without-adapters",
        what="the frozen policy is the model without adapters, whatever was asked for",
        imitates="disable_adapter where another adapter is frozen, or one that was added (B = 0) and never loaded",
        stages=HONEST,
        checks=("parity",),
        of="frozen policies",
        frozen="without adapters",
    ),
    ShardedFault(
        name="reward-one-slot-early-on-last-rank",
        what="the last rank reads the head one token before the last of each response",
        imitates="a rank whose tokenizer or collator ends responses otherwise, or that takes a last token for padding",
        stages=HONEST,
        checks=("parity", "reduction"),
        of="reward models",
        instead=lambda subject: _EarlyOnLastRank(subject),
    ),
    ShardedFault(
        name="clip-over-local-shard",
        what="each rank clips by the norm of its own shards",
        imitates="torch.nn.utils on local tensors, where FSDP1 had a clip_grad_norm_ of its own",
        stages=replace(HONEST, clip=_clip_own_shards),
        checks=("clip",),
    ),
    ShardedFault(
        name="dropped-last-batch",
        what="a rank leaves its last, smaller micro-batch out",
        imitates="drop_last, so that all ranks make as many calls",
        stages=replace(HONEST, micro_batches=_full_ones_only),
        checks=("every-group-once", "parity"),
        micro_size=2,
    ),
    ShardedFault(
        name="duplicated-samples-in-training",
        what="the first groups come again, so that all ranks have as many",
        imitates="DistributedSampler, which fills the last round up",
        stages=replace(HONEST, assign=_first_again),
        checks=("every-group-once", "parity"),
    ),
    ShardedFault(
        name="duplicated-samples-in-evaluation",
        what="the first groups are evaluated twice",
        imitates="DistributedSampler without gather_for_metrics",
        stages=replace(HONEST, evaluation_places=_filled_up),
        checks=("evaluation",),
    ),
    ShardedFault(
        name="mean-of-rank-means",
        what="values are averaged on each rank, then over ranks",
        imitates="all_reduce(AVG) of metrics that are means already",
        stages=replace(HONEST, global_mean=_mean_of_means),
        checks=("evaluation", "parity"),
    ),
    ShardedFault(
        name="low-precision-reduction",
        what="gradients are summed over ranks in bfloat16",
        imitates="reduce_dtype left at the dtype of the parameters of a mixed-precision policy",
        stages=replace(HONEST, reduce_dtype=torch.bfloat16),
        checks=("reduction",),
    ),
    ShardedFault(
        name="dummy-call-adds",
        what="the loss of a dummy call counts a little",
        imitates="a dummy batch with a small loss, so that gradients exist",
        stages=replace(HONEST, dummy=_kept),
        checks=("dummy-calls",),
        needs_dummy_gradient=True,
    ),
    ShardedFault(
        name="dummy-call-times-zero",
        what="the loss of a dummy call is multiplied by zero",
        imitates="loss * 0, which is NaN where the loss or a gradient on its way is not finite",
        stages=replace(HONEST, dummy=_times_zero),
        checks=("dummy-calls",),
    ),
    ShardedFault(
        name="optimizer-before-sharding",
        what="the optimizer holds the parameters from before sharding, so that the model never moves",
        imitates="an optimizer that was made before fully_shard",
        stages=replace(HONEST, trained=_from_before_sharding),
        checks=("optimizer-steps",),
    ),
)


def _in_blocks(num_groups: int, world_size: int) -> Sequence[Sequence[int]]:
    each = -(-num_groups // world_size)
    return [range(min(num_groups, rank * each), min(num_groups, (rank + 1) * each)) for rank in range(world_size)]


def _last_first(num_groups: int, world_size: int) -> Sequence[Sequence[int]]:
    return [range(num_groups - 1 - rank, -1, -world_size) for rank in range(world_size)]


def _all_on_last(num_groups: int, world_size: int) -> Sequence[Sequence[int]]:
    return [*([range(0)] * (world_size - 1)), range(num_groups)]


def _one_by_one(places: Sequence[int], size: int) -> Sequence[Sequence[int]]:
    return [[place] for place in places]


HARMLESS: tuple[HarmlessChange, ...] = (
    HarmlessChange(
        name="groups-in-blocks",
        what="each rank has groups that follow one another",
        stages=replace(HONEST, assign=_in_blocks),
    ),
    HarmlessChange(
        name="last-group-first",
        what="groups are dealt out from the last",
        stages=replace(HONEST, assign=_last_first),
    ),
    HarmlessChange(
        name="all-groups-on-one-rank",
        what="all ranks but one make dummy calls only",
        stages=replace(HONEST, assign=_all_on_last),
    ),
    HarmlessChange(
        name="micro-batches-of-one",
        what="every group is a micro-batch",
        stages=replace(HONEST, micro_batches=_one_by_one),
    ),
    HarmlessChange(
        name="parameters-kept-after-forward",
        what="layers are not resharded after their forward pass",
        stages=HONEST,
        reshard_after_forward=False,
    ),
)

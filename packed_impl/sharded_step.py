"""A step of a sharded model: every rank runs its own groups, and the gradients are those of the whole batch.

Ranks have uneven numbers of groups, of uneven lengths, cut into micro-batches of uneven sizes. What is told here of a
group is its place in the global batch; what a group is, and how its loss is computed, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from packed_impl.sharded_stages import HONEST, ShardedStages, Units, all_reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What a rank can do.

    Args:
        loss_of: The loss of some groups, a mean over their units, differentiable; from their places, and the places
            where cached values of the frozen policy are read for them.
        num_units: Number of units of some groups, from their places.
        dummy: Some differentiable value of a call that makes as many forward passes as one of ``loss_of``.
    """

    loss_of: Callable[[Sequence[int], Sequence[int]], Tensor]
    num_units: Callable[[Sequence[int]], int]
    dummy: Callable[[], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step whose gradients are in ``.grad``, sharded.

    Args:
        loss: Mean over the units of all ranks.
        num_units: Units of all ranks.
        num_dummies: Calls of this rank that added nothing.
    """

    loss: float
    num_units: int
    num_dummies: int


def accumulate(
    model: nn.Module, num_groups: int, work: RankWork, *, micro_size: int, stages: ShardedStages = HONEST
) -> StepDone:
    """Run the micro-batches of this rank, and dummy calls until the busiest rank is done.

    A collective: all ranks have to call it, with the same number of groups.

    Args:
        model: The sharded model, without gradients.
        num_groups: Groups of the batch, over all ranks.
        work: What this rank can do.
        micro_size: Most groups of a micro-batch.
        stages: The stages.

    Returns:
        The loss and counts; gradients are on the parameters.

    Raises:
        ValueError: A size below 1, or no unit on any rank.
    """
    if micro_size < 1:
        raise ValueError(f"micro-batches of {micro_size} groups: at least one is needed")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    micro_batches = stages.micro_batches(stages.assign(num_groups, world_size)[rank], micro_size)
    units = [work.num_units(places) for places in micro_batches]
    num_rounds, of_batch = _most(len(micro_batches)), _sum(sum(units))
    if not of_batch:
        raise ValueError("no rank has anything to learn from: the batch is empty")
    total, num_before = 0.0, 0
    for number in range(num_rounds):
        if number >= len(micro_batches):
            stages.dummy(model, work.dummy)
            continue
        places = micro_batches[number]
        counts = Units(
            micro_batch=units[number],
            rank=sum(units),
            batch=of_batch,
            world_size=world_size,
            micro_batches=len(micro_batches),
        )
        loss = work.loss_of(places, stages.reference_places(places, num_before))
        (loss * stages.share(counts)).backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach()) * units[number]
        num_before += len(places)
    return StepDone(
        loss=stages.global_mean(total, sum(units)),
        num_units=of_batch,
        num_dummies=num_rounds - len(micro_batches),
    )


def _most(count: int) -> int:
    values = torch.tensor([count])
    all_reduce(values, dist.ReduceOp.MAX)
    return int(values)


def _sum(count: int) -> int:
    values = torch.tensor([count])
    all_reduce(values, dist.ReduceOp.SUM)
    return int(values)

"""The stages of a sharded step, each a value that another can take the place of.

A *place* is the number of a group in the global batch, the same on every rank. A *unit* is what the loss is a mean
over: groups, or the supervised tokens or completions of supervised fine-tuning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from packed_impl.dummy_calls import adds_nothing
from packed_impl.sharded_model import reshard_all

Assign = Callable[[int, int], Sequence[Sequence[int]]]
"""The places of each rank, from the number of groups and the number of ranks."""

MicroBatches = Callable[[Sequence[int], int], Sequence[Sequence[int]]]
"""The places of each micro-batch of a rank, from its places and the largest size."""

ReferencePlaces = Callable[[Sequence[int], int], Sequence[int]]
"""Where cached values of the frozen policy are read, from the places of groups and how many the rank had before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Counts of units.

    Args:
        micro_batch: Of a micro-batch.
        rank: Of all micro-batches of this rank.
        batch: Of all ranks.
        world_size: Number of ranks.
        micro_batches: Number of micro-batches of this rank.
    """

    micro_batch: int
    rank: int
    batch: int
    world_size: int
    micro_batches: int


Share = Callable[[Units], float]
"""What the mean loss of a micro-batch is multiplied by before its backward pass."""

Dummy = Callable[[nn.Module, Callable[[], Tensor]], None]
"""Makes a call that adds nothing, from the model and a function that gives some differentiable value of it."""

Clip = Callable[[nn.Module, float], float]
"""Scales the gradients of a sharded model down to a largest norm; the norm before."""

Trained = Callable[[nn.Module], list[nn.Parameter]]
"""The parameters of a sharded model that an optimizer is given."""

GlobalMean = Callable[[float, int], float]
"""A mean over all ranks, from the sum and the count of this rank."""

EvaluationPlaces = Callable[[int, int, int], Sequence[int]]
"""The places that a rank evaluates, from the number of groups, its rank and the number of ranks."""


def dealt(num_groups: int, world_size: int) -> Sequence[Sequence[int]]:
    """Groups dealt out in turn: of five groups and two ranks, 0 2 4 and 1 3."""
    return [range(rank, num_groups, world_size) for rank in range(world_size)]


def cut(places: Sequence[int], size: int) -> Sequence[Sequence[int]]:
    """Micro-batches of one size, and a smaller last one."""
    return [places[start : start + size] for start in range(0, len(places), size)]


def own_places(places: Sequence[int], num_before: int) -> Sequence[int]:
    """The value of a group stands where the group stands in the data, whichever rank has it."""
    return places


def share_of_mean(units: Units) -> float:
    """The part of the global mean that a micro-batch makes up, times the world size.

    ``L = (1/N) sum over ranks and micro-batches of n_m mean_m``, N the units of all ranks: so each mean counts
    ``n_m / N``. FSDP averages gradients over the ranks, where a sum is meant: hence the world size. (Derived.)
    """
    return units.micro_batch / units.batch * units.world_size


def thrown_away(model: nn.Module, value: Callable[[], Tensor]) -> None:
    """The call as it is, with zeros in place of its gradients."""
    with adds_nothing(model):
        value().backward()  # type: ignore[no-untyped-call]


def clip_global(model: nn.Module, max_norm: float) -> float:
    """Clip by the norm over all shards of all parameters: the norm of a sharded gradient is that of the whole."""
    norm = nn.utils.clip_grad_norm_(own_shards(model), max_norm)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def own_shards(model: nn.Module) -> list[nn.Parameter]:
    """The parameters as they are after sharding: those from before it are other tensors, which nobody computes with."""
    reshard_all(model)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def mean_over_ranks(total: float, count: int) -> float:
    """The sum of all ranks over the count of all ranks; never a mean of the ranks' means. NaN where nothing counts."""
    of_all = torch.tensor([total, count], dtype=torch.float64)
    all_reduce(of_all, dist.ReduceOp.SUM)
    total_of_all, count_of_all = of_all.tolist()
    return total_of_all / count_of_all if count_of_all else float("nan")


def every_place_once(num_groups: int, rank: int, world_size: int) -> Sequence[int]:
    """In turn, and without filling the last round up: ranks may have uneven numbers, no group counts twice."""
    return range(rank, num_groups, world_size)


def all_reduce(values: Tensor, how: dist.ReduceOp.RedOpType) -> None:
    """Reduce a tensor of the CPU over all ranks, in place; NCCL has none, so it goes by way of its device."""
    if dist.get_backend() == "nccl":
        on_device = values.to(torch.device("cuda", torch.cuda.current_device()))
        dist.all_reduce(on_device, how)
        values.copy_(on_device)
    else:
        dist.all_reduce(values, how)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStages:
    """The stages of a step; the defaults are the honest ones.

    Args:
        assign: Which rank has which groups.
        micro_batches: How a rank cuts its groups.
        reference_places: Where cached values of the frozen policy are read.
        share: What the loss of a micro-batch is multiplied by.
        dummy: What a rank does that has run out.
        clip: How gradients are clipped.
        trained: What an optimizer is given.
        global_mean: How values are reduced for a log, or an evaluation.
        evaluation_places: Which rank evaluates which groups.
        reduce_dtype: What gradients are summed over ranks in, where it is not the one asked for.
    """

    assign: Assign = dealt
    micro_batches: MicroBatches = cut
    reference_places: ReferencePlaces = own_places
    share: Share = share_of_mean
    dummy: Dummy = thrown_away
    clip: Clip = clip_global
    trained: Trained = own_shards
    global_mean: GlobalMean = mean_over_ranks
    evaluation_places: EvaluationPlaces = every_place_once
    reduce_dtype: torch.dtype | None = None


HONEST = ShardedStages()

"""What each rank's own gradients add up to, computed on whole models and summed in float64 outside of FSDP.

The passes are those of the sharded step to the last bit, so that what is left between the two is the reduction: the sum
over ranks and micro-batches, its weights, its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from verify.sharded.finding import Difference
from verify.sharded.observe import all_gathered, no_gradients_left, seeded
from verify.sharded.rank_work import SubjectOnRank
from verify.subjects.sharded import HONEST, Units
from verify.trained_gradients import to_float64, trained_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedGradients:
    """Gradients of a batch by the name of their LoRA tensor, float64.

    Args:
        total: The sum over all micro-batches of all ranks.
        sizes: The sum of absolute values over the same, by which rounding of a sum is bounded.
        num_terms: Number of gradients in the sum.
    """

    total: Mapping[str, Tensor]
    sizes: Mapping[str, Tensor]
    num_terms: int


def summed_gradients(on_rank: SubjectOnRank, *, micro_size: int, seed: int) -> SummedGradients:
    """Run this rank's micro-batches on a whole model, and sum over ranks. A collective.

    Args:
        on_rank: The subject on a whole model, as this rank computes with it.
        micro_size: Most groups of a micro-batch.
        seed: Of torch's generator.

    Returns:
        The sums, on every rank.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    micro_batches = HONEST.micro_batches(HONEST.assign(len(on_rank.groups), world_size)[rank], micro_size)
    of_batch = sum(all_gathered(sum(map(on_rank.num_units, micro_batches))))
    total: dict[str, Tensor] = {}
    sizes: dict[str, Tensor] = {}
    with seeded(seed):
        for places in micro_batches:
            for name, gradient in _gradients(on_rank, places, of_batch, world_size).items():
                own = gradient / world_size
                total[name] = total[name] + own if name in total else own
                sizes[name] = sizes[name] + own.abs() if name in sizes else own.abs()
    summed = [_over_ranks(on_rank, of_rank) for of_rank in (total, sizes)]
    return SummedGradients(total=summed[0], sizes=summed[1], num_terms=sum(all_gathered(len(micro_batches))))


def gradients_of_one_rank(
    on_rank: SubjectOnRank, *, micro_size: int, seed: int, reduces: torch.dtype
) -> dict[str, Tensor]:
    """What the whole batch leaves where one rank has all of it, summed as FSDP sums: in its dtype, in its order.

    Args:
        on_rank: The subject on a whole model.
        micro_size: Most groups of a micro-batch.
        seed: Of torch's generator.
        reduces: What FSDP reduces in.

    Returns:
        Gradients by name, in the dtype of the sharded parameters' gradients, as float64.
    """
    world_size = dist.get_world_size()
    places = range(len(on_rank.groups))
    held: dict[str, Tensor] = {}
    with seeded(seed):
        for micro_batch in HONEST.micro_batches(places, micro_size):
            found = _gradients(on_rank, micro_batch, on_rank.num_units(places), world_size)
            for name, gradient in found.items():
                own = gradient.to(reduces) / world_size
                held[name] = held[name] + own if name in held else own
    return {name: to_float64(gradient) for name, gradient in held.items()}


def sum_differences(
    actual: Mapping[str, Tensor], total: Mapping[str, Tensor], sizes: Mapping[str, Tensor], epsilons: float
) -> list[Difference]:
    """Gradients against a sum in float64: each element may be off by so many epsilons of the sum of absolute values.

    Args:
        actual: Gathered gradients.
        total: The sum.
        sizes: The sum of absolute values.
        epsilons: How much of it.

    Returns:
        The worst element of each tensor; one that is on one side only is infinitely far.
    """
    differences = []
    for name in sorted(actual.keys() | total.keys()):
        if name not in actual or name not in total:
            differences.append(Difference(f"the gradient of {name}, which is on one side only,", math.inf))
            continue
        distance, allowed = (actual[name] - total[name]).abs(), sizes[name] * epsilons
        ratios = torch.where(distance == 0, 0.0, distance / allowed).flatten()
        index = int(torch.where(ratios.isnan(), math.inf, ratios).argmax())
        place = float(distance.flatten()[index]), float(allowed.flatten()[index])
        differences.append(Difference(f"an element of the gradient of {name}", *place))
    return differences


def _gradients(on_rank: SubjectOnRank, places: Sequence[int], of_batch: int, world_size: int) -> dict[str, Tensor]:
    """Gradients of one micro-batch with its honest share, float64."""
    units = on_rank.num_units(places)
    share = HONEST.share(Units(micro_batch=units, rank=units, batch=of_batch, world_size=world_size, micro_batches=1))
    with no_gradients_left(on_rank.model), torch.enable_grad():
        (on_rank.loss_of(places, places) * share).backward()  # type: ignore[no-untyped-call]
        return {
            trained_name(name): to_float64(parameter.grad)
            for name, parameter in on_rank.model.named_parameters()
            if parameter.requires_grad and parameter.grad is not None
        }


def _over_ranks(on_rank: SubjectOnRank, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sum over ranks; a rank without groups adds zeros."""
    summed = {}
    for name, parameter in on_rank.model.named_parameters():
        if parameter.requires_grad:
            key = trained_name(name)
            own = gradients[key].clone() if key in gradients else torch.zeros(parameter.shape, dtype=torch.float64)
            summed[key] = torch.stack(all_gathered(own)).sum(0)
    return summed

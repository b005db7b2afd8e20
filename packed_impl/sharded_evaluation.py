"""Evaluation on all ranks: loss and accuracy over every pair once, whichever rank computed it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from packed_impl.sharded_stages import HONEST, ShardedStages, all_reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What some groups give; sums, so that they can be added up.

    Args:
        loss: Mean over their units.
        num_units: Number of units.
        margins: Of each pair; empty where nothing is compared. [pairs]
    """

    loss: float
    num_units: int
    margins: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation says, the same on all ranks.

    Args:
        loss: Mean over the units of all ranks.
        accuracy: Share of pairs with a margin above 0; a margin of exactly 0 counts as one half. NaN without pairs.
        mean_margin: Mean over the pairs of all ranks. NaN without pairs.
        num_groups: Groups evaluated, over all ranks.
        num_pairs: Pairs, over all ranks.
        num_ties: Pairs with a margin of exactly 0, over all ranks.
    """

    loss: float
    accuracy: float
    mean_margin: float
    num_groups: int
    num_pairs: int
    num_ties: int


def evaluate(
    num_groups: int,
    of_group: Callable[[int], Evaluated],
    dummy: Callable[[], object],
    *,
    stages: ShardedStages = HONEST,
) -> Evaluation:
    """Evaluate group by group, without gradients; ranks that have run out make calls whose values are thrown away.

    A collective: all ranks have to call it.

    Args:
        num_groups: Groups of the data, over all ranks.
        of_group: Evaluates the group at a place.
        dummy: A call that makes as many forward passes.
        stages: The stages.

    Returns:
        The evaluation.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    places = list(stages.evaluation_places(num_groups, rank, world_size))
    num_rounds = _counts(len(places), how=dist.ReduceOp.MAX)[0]  # before any pass, in which ranks wait for each other
    with torch.no_grad():
        found = [of_group(place) for place in places]
        for _ in range(num_rounds - len(places)):
            dummy()
    margins = torch.cat([each.margins.double() for each in found]) if found else torch.empty(0, dtype=torch.float64)
    num_pairs, num_ties = len(margins), int((margins == 0).sum())
    right = float((margins > 0).sum()) + num_ties / 2
    num_units = sum(each.num_units for each in found)
    of_all = _counts(len(places), num_pairs, num_ties)
    return Evaluation(
        loss=stages.global_mean(sum(each.loss * each.num_units for each in found), num_units),
        accuracy=stages.global_mean(right, num_pairs),
        mean_margin=stages.global_mean(float(margins.sum()), num_pairs),
        num_groups=of_all[0],
        num_pairs=of_all[1],
        num_ties=of_all[2],
    )


def _counts(*counts: int, how: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Sequence[int]:
    values = torch.tensor(counts)
    all_reduce(values, how)
    return [int(value) for value in values]

"""Work of known cost dealt out among ranks, alike on each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch.distributed as dist

from verify.sharded.observe import all_gathered

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def dealt(costs: Sequence[float], num_ranks: int) -> list[int]:
    """Which rank does which item: the dearest first, each to the rank that has least to do.

    Three items of cost 3, 1 and 1 on two ranks go to ranks 0, 1 and 1.

    Args:
        costs: Of each item.
        num_ranks: Number of ranks.

    Returns:
        A rank for each item.
    """
    ranks, loads = [0] * len(costs), [0.0] * num_ranks
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        ranks[item] = min(range(num_ranks), key=lambda rank: loads[rank])
        loads[ranks[item]] += costs[item]
    return ranks


def largest_load(costs: Sequence[float], num_ranks: int) -> float:
    """What the rank that has most to do is dealt."""
    loads = [0.0] * num_ranks
    for cost, rank in zip(costs, dealt(costs, num_ranks), strict=True):
        loads[rank] += cost
    return max(loads)


def shared_among_ranks(
    items: Sequence[_Item], work: Callable[[_Item], _Result], cost: Callable[[_Item], float] = lambda item: 1.0
) -> list[_Result]:
    """Do some work on every item, each on one rank, and give all results to all ranks. A collective.

    Args:
        items: The same on all ranks.
        work: What is done; it calls no collective.
        cost: How long it takes, in any unit.

    Returns:
        The results in the order of the items.
    """
    rank, ranks = dist.get_rank(), dealt([cost(item) for item in items], dist.get_world_size())
    own = {number: work(item) for number, item in enumerate(items) if ranks[number] == rank}
    of_all: dict[int, _Result] = {}
    for of_rank in all_gathered(own):
        of_all |= of_rank
    return [of_all[number] for number in range(len(items))]

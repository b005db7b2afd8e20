"""One sharded step, observed: what all ranks computed, in the order of the data, and the gathered gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from verify.comparison import StructureError
from verify.model_state import seed_torch
from verify.objective import RewardModel, Sft
from verify.observation import Observation
from verify.sharded.rank_work import SeenGroup, SubjectOnRank
from verify.subjects.sharded import ShardedStages, accumulate, full_gradients
from verify.supervised_values import pair_margins
from verify.trained_gradients import to_float64, trained_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedRun:
    """What a sharded step computed, the same on every rank.

    Args:
        loss: Of the whole batch.
        seen: What was computed of each group, once for each time.
        gradients: Whole gradients of the LoRA tensors, float64.
        num_dummies: Calls of each rank that added nothing.
    """

    loss: float
    seen: tuple[tuple[SeenGroup, ...], ...]
    gradients: Mapping[str, Tensor]
    num_dummies: tuple[int, ...]

    def observation(self, on_rank: SubjectOnRank) -> Observation:
        """The observation of the whole batch.

        Args:
            on_rank: Whose groups and objective these are.

        Raises:
            StructureError: A group that no rank has computed.
        """
        missing = [place for place, times in enumerate(self.seen) if not times]
        if missing:
            raise StructureError(f"groups {', '.join(map(str, missing))} of {len(self.seen)}: no rank computed them")
        first = [times[0] for times in self.seen]
        rewards = torch.cat([group.rewards for group in first])
        return Observation(
            per_token_logps=tuple(logp for group in first for logp in group.logps),
            ref_per_token_logps=tuple(logp for group in first for logp in group.ref_logps),
            rewards=rewards,
            margins=rewards if isinstance(on_rank.objective, Sft) else pair_margins(rewards, on_rank.groups),
            loss=torch.tensor(self.loss, dtype=torch.float64),
            gradients=self.gradients,
        )


def run_sharded(on_rank: SubjectOnRank, *, micro_size: int, stages: ShardedStages, seed: int) -> ShardedRun:
    """Run one step without an optimizer, and leave no gradient behind. A collective.

    Args:
        on_rank: The subject on the sharded model.
        micro_size: Most groups of a micro-batch.
        stages: The stages of the step.
        seed: Of torch's generator during the passes.

    Returns:
        What the ranks computed.

    Raises:
        SubjectError: The subject raised on this rank.
        NotShardedError: The subject cannot be run sharded.
    """
    with seeded(seed), no_gradients_left(on_rank.model):
        on_rank.seen.clear()
        done = accumulate(on_rank.model, len(on_rank.groups), on_rank.work, micro_size=micro_size, stages=stages)
        gradients = gathered_gradients(on_rank.model)
        _see_logps(on_rank, stages, micro_size)
    return ShardedRun(
        loss=done.loss,
        seen=_gathered(on_rank),
        gradients=gradients,
        num_dummies=tuple(all_gathered(done.num_dummies)),
    )


def gathered_gradients(model: Any) -> dict[str, Tensor]:
    """Whole gradients of a sharded model, float64 on the CPU, by the names of the gate. A collective."""
    return {
        trained_name(name): to_float64(gradient)
        for name, gradient in full_gradients(model).items()
        if gradient is not None
    }


def _see_logps(on_rank: SubjectOnRank, stages: ShardedStages, micro_size: int) -> None:
    """Passes for log-probs alone, of a subject whose loss returns none; as many calls on every rank."""
    if isinstance(on_rank.objective, RewardModel):
        return
    without = [not group.logps for times in on_rank.seen.values() for group in times]
    if not any(all_gathered(any(without))):
        return
    own = stages.assign(len(on_rank.groups), dist.get_world_size())[dist.get_rank()]
    micro_batches = stages.micro_batches(own, micro_size)
    for number in range(max(all_gathered(len(micro_batches)))):
        if number < len(micro_batches):
            on_rank.see_logps(micro_batches[number])
        else:
            on_rank.dummy_logps()


def _gathered(on_rank: SubjectOnRank) -> tuple[tuple[SeenGroup, ...], ...]:
    of_ranks = all_gathered(on_rank.seen)
    return tuple(
        tuple(group for seen in of_ranks for group in seen.get(place, ())) for place in range(len(on_rank.groups))
    )


def all_gathered(value: Any) -> list[Any]:
    """The value of every rank, by rank. A collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's generator seeded while the context is open, and afterwards as it was."""
    with torch.random.fork_rng():
        seed_torch(seed)
        yield


@contextmanager
def no_gradients_left(model: Any) -> Iterator[None]:
    """No parameter has a gradient, neither when the context opens nor afterwards."""
    drop_gradients(model.parameters())
    try:
        yield
    finally:
        drop_gradients(model.parameters())


def drop_gradients(parameters: Iterator[Any] | Sequence[Any]) -> None:
    """Take the gradients off some parameters."""
    for parameter in parameters:
        parameter.grad = None

"""A few optimizer steps of a sharded model, each held against one process at the same weights.

Judged is each step by itself: its gradients at the weights that the sharded model has by then, and how weights move by
the gathered gradients. Two trajectories of Adam part at once, as an element that is rounding moves as far as any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from reports.words import plural
from verify.sharded.bench import Bench
from verify.sharded.finding import Difference
from verify.sharded.local_gradients import sum_differences, summed_gradients
from verify.sharded.observe import gathered_gradients, no_gradients_left, seeded
from verify.subjects.sharded import ShardedStages, accumulate, whole
from verify.trained_gradients import trained_name

_NUM_STEPS = 3
_MOVED = 0.2
"""How far a step moves the LoRA tensors, relative to their own size."""
_DECAY = 0.1
_EPSILONS = 16
"""Of a weight and of its move, that an update may be off by: about as many operations as AdamW has."""


def optimizer_differences(bench: Bench, stages: ShardedStages, epsilon: float) -> list[Difference]:
    """Run the steps, and put the weights back. A collective.

    Args:
        bench: The bench.
        stages: The stages.
        epsilon: Of the dtype of the shards.

    Returns:
        The worst element of each tensor: of gradients before each step, and of weights after it.
    """
    differences: list[Difference] = []
    on_rank, num_groups = bench.on_rank(), len(bench.scenario.case.groups)
    with _weights_kept(bench.sharded), _weights_kept(bench.whole), seeded(bench.seed):
        copies = {name: weight.clone() for name, weight in _gathered_weights(bench.sharded).items()}
        size = math.sqrt(sum(float(w.double().square().sum()) for w in copies.values()) / _count(copies))
        sharded_optimizer = torch.optim.AdamW(stages.trained(bench.sharded), lr=_MOVED * size, weight_decay=_DECAY)
        whole_optimizer = torch.optim.AdamW(list(copies.values()), lr=_MOVED * size, weight_decay=_DECAY)
        for step in range(_NUM_STEPS):
            with no_gradients_left(bench.sharded):
                accumulate(bench.sharded, num_groups, on_rank.work, micro_size=bench.scenario.micro_size, stages=stages)
                gradients = gathered_gradients(bench.sharded)
                if without := sorted(copies.keys() - gradients.keys()):  # nothing to step with, on any rank
                    return [
                        *differences,
                        Difference(f"the gradient of {without[0]}, of which there is none,", math.inf),
                    ]
                if step:
                    summed = summed_gradients(bench.on_whole(), micro_size=bench.scenario.micro_size, seed=bench.seed)
                    differences += [
                        Difference(f"after {plural(step, 'step')} {each.what}", each.distance, each.allowed)
                        for each in sum_differences(
                            gradients, summed.total, summed.sizes, (summed.num_terms + 2) * bench.reduce_epsilon
                        )
                    ]
                stages.clip(bench.sharded, _norm(gradients) / 2)
                clipped = gathered_gradients(bench.sharded)
                sharded_optimizer.step()
            for name, weight in copies.items():
                weight.grad = clipped[name].to(weight.dtype)
            before = {name: weight.clone() for name, weight in copies.items()}
            whole_optimizer.step()
            moved = _gathered_weights(bench.sharded)
            differences += _moves(moved, before, copies, epsilon, step)
            _write(bench.whole, moved)
            for name, weight in copies.items():
                weight.copy_(moved[name])
    return differences


def _moves(
    moved: Mapping[str, Tensor], before: Mapping[str, Tensor], expected: Mapping[str, Tensor], epsilon: float, step: int
) -> list[Difference]:
    differences = []
    for name, weight in expected.items():
        distance = (moved[name].double() - weight.double()).abs()
        allowed = _EPSILONS * epsilon * (before[name].double().abs() + (weight - before[name]).double().abs())
        index = int(torch.where(distance == 0, 0.0, distance / allowed).argmax())
        worst = float(distance.flatten()[index]), float(allowed.flatten()[index])
        differences.append(Difference(f"after step {step + 1} an element of {name}", *worst))
    return differences


def _gathered_weights(model: Any) -> dict[str, Tensor]:
    """Whole trained tensors of a sharded model, by the names of the gate. A collective."""
    return {
        trained_name(name): whole(parameter.detach())
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _write(model: Any, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[trained_name(name)])


@contextmanager
def _weights_kept(model: Any) -> Iterator[None]:
    """Trained tensors have the same bits afterwards."""
    kept = [(p, p.detach().clone()) for p in model.parameters() if p.requires_grad]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, before in kept:
                parameter.copy_(before)


def _norm(gradients: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))


def _count(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())

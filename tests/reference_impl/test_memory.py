"""What is kept for the backward pass is that of one group, or of one sequence, however many there are."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from reference_impl.gradients import leaves
from reference_impl.groups import unpack
from reference_impl.logps import completion_logps
from reference_impl.reward_model import oracle_reward_step
from reference_impl.router_loss import oracle_router_loss
from reference_impl.step import oracle_step


class Kept:
    """A tensor that autograd keeps, without the graph that it came from."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()


def most_bytes_kept(compute: Callable[[], object]) -> int:
    now = most = 0

    def released(num_bytes: int) -> None:
        nonlocal now
        now -= num_bytes

    def pack(tensor: Tensor) -> Kept:
        nonlocal now, most
        kept = Kept(tensor)
        num_bytes = tensor.numel() * tensor.element_size()
        now, most = now + num_bytes, max(most, now + num_bytes)
        weakref.finalize(kept, released, num_bytes)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        compute()
    return most


def preference_step(made, groups) -> object:
    return oracle_step(groups, made.weights, made.config, made.lora, beta=0.4, label_smoothing=0.0)


def reward_step(made, groups) -> object:
    lora = {module: factors for module, factors in made.lora.items() if module != "lm_head"}
    return oracle_reward_step(groups, made.weights, made.config, lora, torch.ones(32))


def router_loss(made, groups) -> object:
    return oracle_router_loss(groups, made.weights, made.config, made.lora)


def joint_graph(made, groups) -> object:
    lora = leaves(made.lora, requires_grad=True)
    return [completion_logps(sequence, made.weights, made.config, lora) for sequence in unpack(groups)]


@pytest.mark.parametrize("compute", [preference_step, reward_step, router_loss])
def test_four_groups_keep_as_much_as_one(compute, tiny, random_pair) -> None:
    made, pair = tiny("qwen3_moe"), random_pair(6, 5, 5, seed=1)
    one = most_bytes_kept(lambda: compute(made, [pair]))
    assert one > 10_000
    assert most_bytes_kept(lambda: compute(made, [pair] * 4)) == one


def test_one_joint_graph_would_keep_four_times_as_much(tiny, random_pair) -> None:
    made, pair = tiny("qwen3_moe"), random_pair(6, 5, 5, seed=1)
    one = most_bytes_kept(lambda: joint_graph(made, [pair]))
    assert most_bytes_kept(lambda: joint_graph(made, [pair] * 4)) > 3.5 * one

"""Run by each of two ranks: a tiny Qwen3 with LoRA, sharded, beside the same model whole; rank 0 writes what it saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from packed_impl.sharded_model import full_gradients, shard
from packed_impl.step import per_token_logps
from verify.groups import PreferenceGroup
from verify.models.request import ModelRequest, build_model
from verify.sharded.ranks import place_from_environment, process_group

GROUPS = (
    PreferenceGroup((5, 6, 7), ((8, 9), (1,)), ((10, 11, 12),)),
    PreferenceGroup((20, 21), ((22, 23, 24),), ((25,), (26, 27))),
)


def gradients_of_own_group(model: nn.Module, rank: int) -> dict[str, torch.Tensor]:
    loss = -torch.cat(per_token_logps(model, GROUPS[rank : rank + 1], backend="split")).sum()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def largest_distance(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert actual.keys() == expected.keys()
    assert actual
    return max(float((actual[name] - expected[name]).abs().max()) for name in expected)


def main() -> None:
    place = place_from_environment()
    assert place is not None
    found: dict[str, float] = {}
    with process_group(place, 60.0):
        own = gradients_of_own_group(build_model(ModelRequest(name="tiny"), "float32").model, place.rank)
        for name, gradient in own.items():
            dist.all_reduce(gradient)
            own[name] = gradient / place.world_size
        for reshard in (True, False):
            model = build_model(ModelRequest(name="tiny"), "float32").model
            shard(model, reshard_after_forward=reshard)
            gradients_of_own_group(model, place.rank)
            found[f"reshard {reshard}"] = largest_distance(full_gradients(model), own)
        try:
            shard(model)
        except ValueError as error:
            found[str(error)] = 0.0
    if place.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

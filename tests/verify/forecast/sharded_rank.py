"""Two sharded training steps; prints the peak of live bytes of each on rank 0, its share of parameters included.

Not a test: `test_sharded_memory` runs it. The other ranks are forked, so that torch is imported once for all.

    python sharded_rank.py PATH-TO-STORE NUM-RANKS
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from packed_impl.reference_policy import ADAPTERS_OFF, SeparateModel
from packed_impl.sharded_model import shard
from packed_impl.step import dpo_loss
from verify.groups import PreferenceGroup
from verify.models.configs import NamedConfig
from verify.models.lora import LoraSpec
from verify.models.random_weights import build_random
from verify.models.request import ModelRequest, build_model

CONFIG = NamedConfig(
    vocab_size=600,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=False,
    weight_std=0.05,
)
PROMPT, RESPONSE, PAIRS = 24, 16, 2


class AllStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the sizes of all storages after each operator: FSDP2 resizes what it gathers, unseen by operators."""

    def __init__(self, before: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in before:
            self._see(tensor)
        self._look()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((result, args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        self._look()
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._storages:
            self._storages[key] = weakref.ref(storage, lambda _: self._storages.pop(key, None))

    def _look(self) -> None:
        alive = (reference() for reference in list(self._storages.values()))
        self.peak = max(self.peak, sum(storage.nbytes() for storage in alive if storage is not None))


def pairs() -> list[PreferenceGroup]:
    generator = torch.Generator().manual_seed(dist.get_rank())

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(CONFIG.vocab_size, (length,), generator=generator).tolist())

    return [PreferenceGroup(ids(PROMPT), (ids(RESPONSE),), (ids(RESPONSE),)) for _ in range(PAIRS)]


def local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter._local_tensor if hasattr(parameter, "_local_tensor") else parameter


def peak_of_step(trained: str) -> int:
    """Of a rank: adapters trained over the model without them, or all parameters over a frozen copy."""
    model: nn.Module
    others: list[nn.Module] = []
    if trained == "lora":
        model = build_model(ModelRequest(name="small", config=CONFIG, lora=LoraSpec()), "float32").model
    else:
        model = build_random(CONFIG, num_layers=5, dtype=torch.float32, seed=0).requires_grad_(True)
        others = [build_random(CONFIG, num_layers=5, dtype=torch.float32, seed=1)]
    for each in (model.train(), *others):
        shard(each)
    reference = SeparateModel(others[0]) if others else ADAPTERS_OFF

    def step() -> None:
        dpo_loss(
            model, pairs(), backend="dense-sdpa", rows="row-per-group", beta=0.1, reference=reference
        ).loss.backward()
        model.zero_grad()

    step()  # which prepares what is gathered
    held = [local(tensor) for each in (model, *others) for tensor in (*each.parameters(), *each.buffers())]
    with AllStorages(held) as storages:
        step()
    return storages.peak


def run_rank(store: str, rank: int, num_ranks: int) -> tuple[int, ...]:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    peaks = tuple(map(peak_of_step, ("lora", "all")))
    dist.destroy_process_group()
    return peaks


def fork_rank(store: str, rank: int, num_ranks: int) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run_rank(store, rank, num_ranks)
            status = 0
        finally:
            os._exit(status)
    return child


def main(store: str, num_ranks: int) -> None:
    others = [fork_rank(store, rank, num_ranks) for rank in range(1, num_ranks)]
    print(*run_rank(store, 0, num_ranks))
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in others))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""Memory: what a step takes is bounded from below by what must be there, and what does not fit is NO-GO by how much."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from verify.models.configs import named_config
from verify.models.lora import LoraSpec
from verify.models.memory import num_weights
from verify.models.request import ModelRequest, build_model
from verify.preflight.batch_memory import NeededBytes, PlannedBatch, needed_bytes
from verify.preflight.depth import oracle_depth
from verify.preflight.headroom import available_bytes, check_headroom
from verify.preflight.machine import Device, Machine, Memory
from verify.preflight.profiles import PROFILES

GIB = 2**30
BATCH = PlannedBatch(groups=1, prompt_tokens=512, response_tokens=512)
NEEDED = NeededBytes(weights=2 * GIB, in_flight=GIB, activations=4 * GIB, logits=GIB, loading=6 * GIB)
MACHINE = Machine(
    host="a",
    versions={},
    settings={},
    environment={},
    memory=Memory(total_bytes=64 * GIB, available_bytes=32 * GIB, swap_free_bytes=0),
    device=Device(name="cpu"),
    adapters=(),
    processes=2,
)
GPU = Device(name="GPU", capability=(9, 0), total_bytes=80 * GIB, free_bytes=10 * GIB)


def outcomes(machine: Machine, needed: NeededBytes = NEEDED) -> dict[str, str]:
    return {each.part: each.outcome for each in check_headroom(needed, BATCH, machine, PROFILES["none"])}


def test_what_fits_is_go_with_what_is_left() -> None:
    step, loading = check_headroom(NEEDED, BATCH, MACHINE, PROFILES["none"])
    assert (step.outcome, loading.outcome) == ("GO", "GO")
    assert "8.00 GiB" in step.seen
    assert step.measures["needed_bytes"] == 8 * GIB
    assert step.measures["available_bytes"] == 16 * GIB


def test_what_does_not_fit_is_no_go_and_says_by_how_much() -> None:
    step, loading = check_headroom(
        replace(NEEDED, activations=14 * GIB, loading=17 * GIB), BATCH, MACHINE, PROFILES["none"]
    )
    assert step.outcome == loading.outcome == "NO-GO"
    assert "2.00 GiB too few" in step.seen
    assert "2.00 GiB too few" in loading.seen
    assert step.hint


def test_a_device_counts_by_what_it_has_free() -> None:
    assert available_bytes(replace(MACHINE, device=GPU), PROFILES["none"]) == 10 * GIB
    assert outcomes(replace(MACHINE, device=replace(GPU, free_bytes=7 * GIB)))["step"] == "NO-GO"


def test_unified_memory_counts_by_what_the_machine_has_under_the_cap() -> None:
    machine = replace(MACHINE, device=GPU, processes=1)
    assert available_bytes(machine, PROFILES["gb10"]) == 32 * GIB
    roomy = replace(machine, memory=replace(machine.memory, available_bytes=120 * GIB))
    assert available_bytes(roomy, PROFILES["gb10"]) == 100_000_000_000


def test_a_machine_that_does_not_say_abstains() -> None:
    assert outcomes(replace(MACHINE, memory=Memory())) == {"step": "ABSTAINS", "loading": "ABSTAINS"}


def test_shares_shrink_with_ranks_and_layers_in_flight_do_not() -> None:
    config, lora = named_config("qwen3-8b"), LoraSpec()
    one, eight = (needed_bytes(config, lora, BATCH, num_layers=36, itemsize=2, world_size=ranks) for ranks in (1, 8))
    assert eight.weights == pytest.approx(one.weights / 8, rel=1e-6)
    assert one.weights >= 2 * num_weights(config, 36, lora)
    assert eight.in_flight == one.in_flight
    assert eight.activations == one.activations


def test_activations_are_no_less_than_what_autograd_keeps_and_no_more_than_twice() -> None:
    config, lora, tokens = named_config("tiny"), LoraSpec(), 256
    model = build_model(ModelRequest(name="tiny", lora=lora), "float32").model
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.base_model.model.model(torch.arange(tokens)[None] % 257, use_cache=False).last_hidden_state
    batch = PlannedBatch(groups=1, prompt_tokens=tokens - 2, response_tokens=1)
    estimate = needed_bytes(config, lora, batch, num_layers=2, itemsize=4, world_size=1).activations
    assert hidden.requires_grad
    assert sum(kept.values()) <= estimate <= 2 * sum(kept.values())


def depth(host_bytes: int | None, stage_s: float = 1e9) -> int:
    return oracle_depth(
        named_config("qwen3-8b"),
        LoraSpec(),
        num_layers=36,
        batch=BATCH,
        itemsize=2,
        host_bytes=host_bytes,
        stage_s=stage_s,
    ).num_layers


def test_the_oracle_runs_on_as_many_layers_as_fit() -> None:
    assert depth(None) == 36
    assert depth(2**50) == 36
    cut = depth(64 * GIB)
    assert 1 < cut < 36
    assert depth(32 * GIB) < cut
    assert depth(1) == 1


def test_the_oracle_runs_on_as_many_layers_as_there_is_time_for_and_says_why() -> None:
    found = oracle_depth(
        named_config("qwen3-8b"), LoraSpec(), num_layers=36, batch=BATCH, itemsize=2, host_bytes=None, stage_s=600
    )
    assert found.num_layers < 36
    assert "at full depth" in found.why_cut
    assert (
        oracle_depth(
            named_config("tiny"), LoraSpec(), num_layers=2, batch=BATCH, itemsize=4, host_bytes=None, stage_s=600
        ).why_cut
        == ""
    )

"""Memory: what a step takes is bounded from below by what must be there, and what does not fit is NO-GO by how much."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from verify.forecast.peak import PeakBytes
from verify.models.configs import named_config
from verify.models.lora import LoraSpec
from verify.models.memory import num_weights
from verify.models.random_weights import hf_config
from verify.models.request import ModelRequest, build_model
from verify.preflight.depth import OracleDepth, OracleMeans, kept_per_token, oracle_depth
from verify.preflight.headroom import available_bytes, check_headroom
from verify.preflight.machine import Device, Machine, Memory
from verify.preflight.profiles import PROFILES
from verify.preflight.step_memory import PlannedBatch, StepMemory, cut_config, step_memory

GIB = 2**30
BATCH = PlannedBatch(prompt=512, response=512, pairs=1)
PEAK = PeakBytes(
    parameters=2 * GIB, optimizer_state=GIB, gradients=0, gathered=GIB, activations=4 * GIB, phase="backward", layer=0
)
NEEDED = StepMemory(peaks={"split": PEAK}, loading=6 * GIB)
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


def outcomes(machine: Machine, needed: StepMemory = NEEDED) -> dict[str, str]:
    return {each.part: each.outcome for each in check_headroom(needed, BATCH, machine, PROFILES["none"])}


def test_what_fits_is_go_with_what_is_left() -> None:
    step, loading = check_headroom(NEEDED, BATCH, MACHINE, PROFILES["none"])
    assert (step.outcome, loading.outcome) == ("GO", "GO")
    assert "8.00 GiB" in step.seen
    assert step.measures["needed_bytes"] == 8 * GIB
    assert step.measures["available_bytes"] == 16 * GIB


def test_what_does_not_fit_is_no_go_and_says_by_how_much() -> None:
    needed = StepMemory(peaks={"split": replace(PEAK, activations=14 * GIB)}, loading=17 * GIB)
    step, loading = check_headroom(needed, BATCH, MACHINE, PROFILES["none"])
    assert step.outcome == loading.outcome == "NO-GO"
    assert "2.00 GiB too few" in step.seen
    assert "2.00 GiB too few" in loading.seen
    assert step.hint


def test_a_device_counts_by_what_it_has_free() -> None:
    assert available_bytes(replace(MACHINE, device=GPU), PROFILES["none"]) == 10 * GIB
    assert outcomes(replace(MACHINE, device=replace(GPU, free_bytes=7 * GIB)))["step split"] == "NO-GO"


def test_unified_memory_counts_by_what_the_machine_has_under_the_cap() -> None:
    machine = replace(MACHINE, device=GPU, processes=1)
    assert available_bytes(machine, PROFILES["gb10"]) == 32 * GIB
    roomy = replace(machine, memory=replace(machine.memory, available_bytes=120 * GIB))
    assert available_bytes(roomy, PROFILES["gb10"]) == 100_000_000_000


def test_a_machine_that_does_not_say_abstains() -> None:
    assert outcomes(replace(MACHINE, memory=Memory())) == {"step split": "ABSTAINS", "loading": "ABSTAINS"}


def test_a_step_is_followed_on_shapes_at_the_depth_that_is_trained() -> None:
    config, batch = hf_config(named_config("tiny"), 2), PlannedBatch(prompt=20, response=8, pairs=1)

    def follow(num_layers: int, world_size: int) -> StepMemory:
        return step_memory(
            cut_config(config, num_layers), LoraSpec(), batch, ("flex", "split"),
            dtype=torch.float32, device_type="cpu", world_size=world_size,
        )  # fmt: skip

    whole, shared, shallow = follow(2, 1), follow(2, 2), follow(1, 1)
    assert list(whole.peaks) == ["split"]  # flex has no step on a CPU
    num_parameters = num_weights(named_config("tiny"), 2, LoraSpec())
    assert whole.loading == whole.peaks["split"].parameters == 4 * num_parameters
    assert shared.peaks["split"].parameters == pytest.approx(whole.loading / 2, rel=0.01)
    assert shared.loading == whole.loading
    assert shallow.loading == 4 * num_weights(named_config("tiny"), 1, LoraSpec())
    assert shallow.peaks["split"].activations < whole.peaks["split"].activations


def test_the_estimate_for_the_oracle_is_no_less_than_what_autograd_keeps_and_no_more_than_twice() -> None:
    config, lora, tokens = named_config("tiny"), LoraSpec(), 256
    model = build_model(ModelRequest(name="tiny", lora=lora), "float64").model
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.base_model.model.model(torch.arange(tokens)[None] % 257, use_cache=False).last_hidden_state
    estimate = 2 * tokens * kept_per_token(config, lora)
    assert hidden.requires_grad
    assert sum(kept.values()) <= estimate <= 2 * sum(kept.values())


def depth(
    available: int | None, *, stage_s: float = 1e9, model: str = "qwen3-8b", layer_s: float = 10.0
) -> OracleDepth:
    config = named_config(model)
    return oracle_depth(
        config,
        LoraSpec(),
        num_layers=config.num_hidden_layers,
        tokens_of_group=BATCH.tokens,
        itemsize=2,
        means=OracleMeans(available_bytes=available, expected_s=lambda layers: layers * layer_s, stage_s=stage_s),
    )


def test_the_oracle_runs_on_as_many_layers_as_fit() -> None:
    assert depth(None) == depth(2**50) == OracleDepth(num_layers=36)
    cut = depth(64 * GIB).num_layers
    assert 1 < cut < 36
    assert depth(32 * GIB).num_layers < cut
    assert depth(1).num_layers == 1


def test_the_oracle_runs_on_as_many_layers_as_there_is_time_for_and_says_why() -> None:
    found = depth(None, stage_s=600)
    assert found.num_layers == 18
    assert "all of them would take" in found.why_cut
    assert "360 s" in found.why_cut
    assert depth(None, stage_s=600, layer_s=1.0) == OracleDepth(num_layers=36)
    assert depth(None, stage_s=600, model="tiny").why_cut == ""

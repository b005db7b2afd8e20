"""FSDP2 on a LoRA model, on a group of a single rank: what is sharded, what is refused, and calls that add nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from packed_impl.dummy_calls import adds_nothing
from packed_impl.sharded_model import decoder_layers, full_gradients, local_shards, shard
from packed_impl.step import per_token_logps
from verify.groups import PreferenceGroup
from verify.models.request import ModelRequest, build_model
from verify.sharded.ranks import RankPlace, _free_port, process_group

GROUP = PreferenceGroup((5, 6, 7), ((8, 9), (1,)), ((10, 11, 12),))


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(_free_port()))
    with process_group(RankPlace(0, 1, 0), 30.0):
        yield


def tiny() -> Any:
    return build_model(ModelRequest(name="tiny"), "float32").model


def loss_of(model: nn.Module) -> torch.Tensor:
    return -torch.cat(per_token_logps(model, [GROUP], backend="split")).sum()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("reshard", [True, False])
def test_gradients_of_a_sharded_model_are_those_of_the_whole_one(reshard: bool) -> None:
    model, sharded = tiny(), tiny()
    shard(sharded, reshard_after_forward=reshard)
    for each in (model, sharded):
        loss_of(each).backward()
    expected, actual = gradients(model), full_gradients(sharded)
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        assert gradient is not None
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0)


@pytest.mark.usefixtures("_alone")
def test_every_parameter_is_a_shard_and_every_layer_has_a_group_of_its_own() -> None:
    model = tiny()
    shard(model, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    names = [type(module).__name__ for module in model.modules() if type(module).__name__.startswith("FSDP")]
    assert names == ["FSDPPeftModelForCausalLM", "FSDPQwen3DecoderLayer", "FSDPQwen3DecoderLayer"]


@pytest.mark.usefixtures("_alone")
def test_shards_can_be_read_after_a_pass_that_left_whole_parameters() -> None:
    model = tiny()
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    shard(model)
    with torch.no_grad():
        loss_of(model)
    shards = local_shards(model)
    assert all(torch.equal(shards[name], value) for name, value in expected.items())


@pytest.mark.usefixtures("_alone")
def test_a_first_pass_under_pefts_own_switch_does_not_lose_the_dtype_of_gradients() -> None:
    found = []
    for reference_first in (False, True):
        model = tiny()
        shard(model, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if reference_first:
            with torch.no_grad(), model.disable_adapter():
                loss_of(model)
        loss_of(model).backward()
        found.append(full_gradients(model))
    for name, gradient in found[0].items():
        assert gradient is not None
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, found[1][name])


@pytest.mark.usefixtures("_alone")
def test_a_model_is_sharded_once() -> None:
    model = tiny()
    shard(model)
    with pytest.raises(ValueError, match="is sharded already"):
        shard(model)


def test_decoder_layers_are_those_that_the_model_keeps_whole() -> None:
    assert [type(layer).__name__ for layer in decoder_layers(tiny())] == ["Qwen3DecoderLayer"] * 2


def test_a_model_that_names_no_layers_is_refused() -> None:
    model = tiny()
    model.base_model.model._no_split_modules = None
    with pytest.raises(ValueError, match=r"says are not to be split \(none\)"):
        decoder_layers(model)


def test_without_ranks_there_is_nothing_to_shard_over() -> None:
    with pytest.raises(ValueError, match="no process group"):
        shard(nn.Linear(1, 1, dtype=torch.float32))


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("factor", [1.0, math.inf, math.nan])
def test_a_call_that_adds_nothing_leaves_every_bit_of_a_gradient(is_sharded: bool, factor: float) -> None:
    model = tiny()
    if is_sharded:
        shard(model)
    loss_of(model).backward()
    read: Callable[[nn.Module], Any] = full_gradients if is_sharded else gradients
    before = {name: gradient.clone() for name, gradient in read(model).items()}
    with adds_nothing(model):
        (loss_of(model) * factor).backward()
    after = read(model)
    assert all(torch.equal(after[name], gradient) for name, gradient in before.items())
    assert all(gradient.any() for gradient in before.values())


def test_after_a_call_that_added_nothing_calls_add_again() -> None:
    model = tiny()
    with adds_nothing(model):
        loss_of(model).backward()
    assert all(not gradient.any() for gradient in gradients(model).values())
    loss_of(model).backward()
    assert all(gradient.any() for gradient in gradients(model).values())


def test_a_loss_times_zero_is_no_call_that_adds_nothing() -> None:
    model = tiny()
    (loss_of(model) * math.inf * 0).backward()
    assert all(gradient.isnan().any() for gradient in gradients(model).values())

"""FSDP2 on a LoRA model, by two gloo ranks: what is averaged over ranks, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from packed_impl.sharded_model import decoder_layers, shard
from verify.models.request import ModelRequest, build_model
from verify.sharded.ranks import start_local_ranks

PROGRAM = Path(__file__).with_name("sharded_program.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    file = tmp_path_factory.mktemp("ranks") / "found.json"
    assert start_local_ranks([str(file)], 2, 300.0, program=(str(PROGRAM),)) == 0
    return dict(json.loads(file.read_text()))


@pytest.mark.parametrize("reshard", [True, False])
def test_gradients_of_a_sharded_model_are_the_average_over_ranks(found: dict[str, float], reshard: bool) -> None:
    assert found[f"reshard {reshard}"] < 1e-6


def test_a_model_is_sharded_once(found: dict[str, float]) -> None:
    assert [name for name in found if name.endswith("is sharded already")]


def test_decoder_layers_are_those_that_the_model_keeps_whole() -> None:
    model = build_model(ModelRequest(name="tiny"), "float32").model
    assert [type(layer).__name__ for layer in decoder_layers(model)] == ["Qwen3DecoderLayer"] * 2


def test_a_model_that_names_no_layers_is_refused() -> None:
    model = build_model(ModelRequest(name="tiny"), "float32").model
    model.base_model.model._no_split_modules = None
    with pytest.raises(ValueError, match=r"says are not to be split \(none\)"):
        decoder_layers(model)


def test_without_ranks_there_is_nothing_to_shard_over() -> None:
    with pytest.raises(ValueError, match="no process group"):
        shard(nn.Linear(1, 1, dtype=torch.float32))

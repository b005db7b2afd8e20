"""Weights are counted before they are made, and what the machine cannot hold is refused with its size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from verify.models.configs import TINY_CONFIGS, NamedConfig, named_config
from verify.models.lora import LoraSpec
from verify.models.memory import check_memory, num_weights
from verify.models.request import ModelRequest, build_model

TINY = named_config("tiny")
LORA = LoraSpec(rank=3)


LLAMA, MOE = TINY_CONFIGS["tiny-llama"], TINY_CONFIGS["tiny-qwen3-moe"]


@pytest.mark.parametrize(
    "config",
    [
        *TINY_CONFIGS.values(),
        replace(TINY, tie_word_embeddings=True),
        replace(TINY, attention_bias=True),
        replace(LLAMA, attention_bias=True, mlp_bias=True),
        replace(MOE, experts=MOE.experts and replace(MOE.experts, mlp_only_layers=(0,))),
        replace(MOE, attention_bias=True, experts=MOE.experts and replace(MOE.experts, decoder_sparse_step=2)),
    ],
)
def test_as_many_weights_are_counted_as_the_built_model_has(config: NamedConfig) -> None:
    request = ModelRequest(name="mine", config=config, num_layers=2, lora=LORA)
    built = build_model(request, "bfloat16").model
    assert num_weights(config, 2, LORA) == sum(parameter.numel() for parameter in built.parameters())


def test_weights_that_fill_the_memory_are_taken_and_one_byte_less_is_refused() -> None:
    request = ModelRequest(name="tiny", lora=LORA)
    needed = num_weights(TINY, 2, LORA) * 8
    check_memory(request, ["float64", "bfloat16"], needed)
    check_memory(request, ["bfloat16"], needed // 4)
    with pytest.raises(ValueError, match=r"model tiny: its .* weights would take .* in float64, and this machine has"):
        check_memory(request, ["bfloat16", "float64", "float32"], needed - 1)
    check_memory(replace(request, num_layers=1), ["float64"], needed - 1)


def test_ranks_of_one_machine_share_its_memory() -> None:
    """Two of them hold a model twice each, whole and until it is sharded."""
    request = ModelRequest(name="tiny", lora=LORA)
    needed = num_weights(TINY, 2, LORA) * 4 * 2 * 2
    check_memory(request, ["float32"], needed, ranks_here=2, copies=2)
    with pytest.raises(
        ValueError, match=r"twice on each of 2 ranks of this machine, .* of memory, 1.00 B too few: .*ranks"
    ):
        check_memory(request, ["float32"], needed - 1, ranks_here=2, copies=2)
    check_memory(request, ["float32"], needed // 4, copies=2)


def test_an_absurd_shape_is_refused_on_any_machine() -> None:
    """Two layers of them take 32 TiB."""
    absurd = replace(TINY, vocab_size=2**20, hidden_size=2**20, intermediate_size=2**20)
    with pytest.raises(ValueError, match=r"model absurd\.json: its 8,\d{3},\d{3},\d{3},\d{3} weights .* fewer layers"):
        check_memory(ModelRequest(name="absurd.json", config=absurd, lora=LORA), ["float32"])


@pytest.mark.parametrize(("reference", "models"), [("frozen-adapter", 1), ("separate-model", 2), ("cached", 2)])
def test_the_model_of_a_frozen_policy_is_counted_too(reference, models) -> None:
    request = ModelRequest(name="tiny", lora=LORA, reference=reference)
    needed = models * num_weights(TINY, TINY.num_hidden_layers, LORA) * 4
    check_memory(request, ["float32"], available=needed)
    with pytest.raises(ValueError, match="of memory"):
        check_memory(request, ["float32"], available=needed - 1)

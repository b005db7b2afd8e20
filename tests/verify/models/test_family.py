"""Tiny models of families that have no config of their own here."""

from __future__ import annotations

import pytest
import torch

from verify.models.family import tiny_family
from verify.models.request import ModelRequest, build_model, has_rotary_positions, requested_config, vocabulary_size


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("tiny-gemma3_text", "gemma3_text"),
        ("Tiny-Gemma3_Text", "gemma3_text"),
        ("tiny", ""),
        ("tiny-qwen2", ""),
        ("qwen3-0.6b", ""),
        ("some/folder", ""),
    ],
)
def test_a_name_asks_for_a_family_only_where_no_config_has_it(name, family) -> None:
    assert tiny_family(name) == family


def test_an_unknown_family_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown model family 'gemma_3'.*did you mean gemma3"):
        ModelRequest(name="tiny-gemma_3")


def test_a_family_that_cannot_be_built_small_or_with_sdpa_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tiny-gemma2: transformers computes it without SDPA"):
        requested_config(ModelRequest(name="tiny-gemma2"))
    with pytest.raises(ValueError, match=r"tiny-dots3_note_text: .* parameters at its smallest"):
        requested_config(ModelRequest(name="tiny-dots3_note_text"))


def test_its_depth_is_not_cut() -> None:
    with pytest.raises(ValueError, match="--layers 1: tiny-gpt2 is built as shallow"):
        ModelRequest(name="tiny-gpt2", num_layers=1)


def test_every_dtype_runs_the_same_weights() -> None:
    request = ModelRequest(name="tiny-gemma3_text", seed=3)
    wide, narrow = (build_model(request, dtype).model for dtype in ("float64", "bfloat16"))
    pairs = list(zip(wide.named_parameters(), narrow.named_parameters(), strict=True))
    assert all(name == other and torch.equal(p, q.double()) for (name, p), (other, q) in pairs)
    assert vocabulary_size(request) == 257
    other = build_model(ModelRequest(name="tiny-gemma3_text", seed=4), "float64").model
    assert not torch.equal(other.get_input_embeddings().weight, wide.get_input_embeddings().weight)


def test_a_model_without_our_layer_names_has_adapters_on_all_linear_layers_of_its_blocks() -> None:
    model = build_model(ModelRequest(name="tiny-gpt2"), "float32").model
    assert model.peft_config["default"].target_modules == {"c_attn", "c_proj", "c_fc"}
    adapted = {name.split(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert len(adapted) == 4 * 4  # of each of four blocks: c_attn, both c_proj, c_fc
    assert not any("lm_head" in name for name in adapted)


def test_experts_are_chosen_without_adapters() -> None:
    model = build_model(ModelRequest(name="tiny-mixtral"), "float32").model
    assert model.peft_config["default"].target_modules == {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize(("name", "rotary"), [("tiny", True), ("tiny-gemma3_text", True), ("tiny-gpt2", False)])
def test_rotary_positions_are_read_off_the_config(name, rotary) -> None:
    assert has_rotary_positions(requested_config(ModelRequest(name=name))) == rotary

"""What is found on families whose behaviour is known from their equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from verify.contamination.examples import draw_examples
from verify.families.names import causal_lm_classes, select_families
from verify.families.probe import (
    WAYS,
    FamilyResult,
    NotBuiltError,
    Outcome,
    build_tiny,
    probe,
    rewriting_change,
)
from verify.families.tiny_config import VOCAB_SIZE, layer_kinds, tiny_config


def outcomes(found: FamilyResult) -> dict[str, Outcome]:
    return {way.way: way.outcome for way in found.ways}


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def test_attention_is_isolated_without_mask_and_cache_only() -> None:
    found = probe("qwen3", seed=0)
    assert found.positions == "honoured"
    for way, outcome in outcomes(found).items():
        isolated = WAYS[way].mask == "absent" and WAYS[way].cache == "off"
        assert outcome == ("isolated" if isolated else "leaks"), way
    assert all(way.bit_identical == (way.outcome == "isolated") for way in found.ways)


def test_a_recurrent_state_leaks_in_every_way_of_calling() -> None:
    """The state of a row knows of no positions: nothing in the call can reset it."""
    found = probe("mamba", seed=0)
    assert found.positions == "ignored"
    assert set(outcomes(found).values()) - {"refused"} == {"leaks"}
    assert outcomes(found)["no-mask"] == "leaks"


def test_linear_biases_ignore_positions() -> None:
    """ALiBi penalises distances in the row; no call says that a row holds several sequences."""
    found = probe("bloom", seed=0)
    assert found.positions != "honoured"
    assert "isolated" not in outcomes(found).values()


def test_gradient_checkpointing_turns_the_cache_off_and_with_it_the_leak() -> None:
    """The same call isolates or leaks by a setting that is said to change nothing but memory."""
    model, examples = build_tiny("qwen3", 0).train(), draw_examples(VOCAB_SIZE, 0)
    default_cache = WAYS["no-mask/default-cache"]
    assert rewriting_change(model, default_cache, examples) > 0.1
    model.activation_checkpointing_enable()
    with torch.enable_grad():
        assert rewriting_change(model.requires_grad_(True), default_cache, examples) == 0


def test_a_call_that_a_model_cannot_take_is_refused_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> float:
        raise RuntimeError("rows of this length\nare not taken")

    monkeypatch.setattr("verify.families.probe.rewriting_change", refuse)
    found = probe("gpt2", seed=0)
    assert {(way.outcome, way.reason) for way in found.ways} == {
        ("refused", "RuntimeError: rows of this length are not taken")
    }


def test_weights_and_findings_follow_from_the_seed() -> None:
    assert probe("llama", seed=1) == probe("llama", seed=1)
    assert probe("llama", seed=1) != probe("llama", seed=2)


def test_a_family_that_cannot_be_built_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model_type: str) -> None:
        raise ImportError("needs a library\nthat is not here")

    monkeypatch.setattr("verify.families.probe.tiny_config", refuse)
    with pytest.raises(NotBuiltError, match="ImportError: needs a library that is not here"):
        probe("qwen3", seed=0)


@pytest.mark.parametrize("model_type", ["jamba", "gemma3", "gemma3_text", "qwen3_next", "lfm2", "bamba"])
def test_every_kind_of_layer_of_a_hybrid_is_in_its_tiny_config(model_type: str) -> None:
    """Jamba's first attention layer is its fifth, Gemma's sixth layer its first without a window."""
    config = tiny_config(model_type)
    assert len(layer_kinds(config)) == 2
    assert config.get_text_config().hidden_size == 64


def test_families_are_chosen_by_name_and_all_by_default() -> None:
    assert select_families(["qwen3", "gpt2"]) == ("qwen3", "gpt2")
    assert select_families([]) == tuple(sorted(causal_lm_classes()))
    with pytest.raises(ValueError, match="unknown model family 'qwem3': did you mean qwen3"):
        select_families(["qwem3"])
    with pytest.raises(ValueError, match="named twice"):
        select_families(["qwen3", "qwen3"])

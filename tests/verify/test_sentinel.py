"""What a subject leaves behind shows in a short forward, wherever it sits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers.models.qwen3.modeling_qwen3 as qwen3

from verify.model_holder import LeftBehindError, ModelHolder
from verify.model_state import WeightsChangedError
from verify.models.request import ModelRequest, build_model
from verify.sentinel import model_bits, same_bits
from verify.verdict import Verdict


@pytest.fixture
def model() -> Any:
    return build_model(ModelRequest(name="tiny", num_layers=1), "float32").model


def test_an_unchanged_model_gives_the_same_bits(model: Any) -> None:
    assert same_bits(model_bits(model), model_bits(model))
    assert model.config._attn_implementation == "sdpa"


def test_a_model_under_autocast_gives_the_bits_that_it_gave_before(model: Any) -> None:
    """Third parties' subjects are held to them within exact checks, which run under it."""
    before = model_bits(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same_bits(before, model_bits(model))


@pytest.mark.parametrize("change", ["scaling of an adapter", "epsilon of a norm", "class of a module"])
def test_a_change_that_no_list_of_settings_has_shows(model: Any, change: str) -> None:
    before = model_bits(model)
    layer = model.base_model.model.model.layers[0]
    if change == "scaling of an adapter":
        layer.mlp.up_proj.scaling["default"] *= 1.001
    elif change == "epsilon of a norm":
        layer.input_layernorm.variance_epsilon = 1e-3
    else:
        layer.mlp.act_fn = torch.nn.ReLU()
    assert not same_bits(before, model_bits(model))


def test_a_patched_function_of_the_library_shows(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rotate = model_bits(model), qwen3.rotate_half
    monkeypatch.setattr(qwen3, "rotate_half", lambda x: -rotate(x))
    assert not same_bits(before, model_bits(model))


@pytest.mark.parametrize(("patched", "left"), [(False, WeightsChangedError), (True, LeftBehindError)])
def test_what_raises_computes_something_else(
    monkeypatch: pytest.MonkeyPatch, patched: bool, left: type[Exception]
) -> None:
    """A rotation made for the lengths of a packed row does not fit any other; a layer that is gone is missed."""
    holder = ModelHolder(ModelRequest(name="tiny", num_layers=1), "float32")
    holder.check_bits("mine")
    if patched:
        cosines = torch.zeros(1, 1, 7, 32)
        monkeypatch.setattr(qwen3, "apply_rotary_pos_emb", lambda q, k, cos, sin: (q * cosines, k * cosines))
    else:
        del holder.model.base_model.model.model.layers[0].mlp.act_fn
    with pytest.raises(left, match="subject mine left"):
        holder.check_bits("mine")


class ScalesAnAdapter:
    """Packed by nobody, wrong for everybody after it."""

    name = "scales-an-adapter"

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        logps = self._inner.per_token_logps(model, groups)
        model.base_model.model.model.layers[0].mlp.up_proj.scaling["default"] *= 1.5
        return logps


def test_whoever_leaves_the_model_computing_something_else_is_an_error_and_the_next_is_judged_on_a_new_one(
    gate: Any, third_party: Any, short_case: Any
) -> None:
    by_hand = third_party("ByHand")
    results = gate([ScalesAnAdapter(by_hand), by_hand], [short_case]).results
    assert [result.verdict for result in results] == [Verdict.ERROR, Verdict.PASS]
    assert "left the model computing something else" in results[0].reasons[0]

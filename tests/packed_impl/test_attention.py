from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_utils import AttentionInterface

from packed_impl.attention import BACKENDS, attention_implementation, backend_named, causal_lm, gradient_support
from packed_impl.step import per_token_logps

Build = Callable[..., nn.Module]


def registered() -> dict[str, object]:
    return dict(AttentionInterface._global_mapping)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("before", ["sdpa", "eager"])
def test_the_attention_implementation_is_restored(tiny_model: Build, backend: str, before: str) -> None:
    model = tiny_model()
    language_model = causal_lm(model)
    language_model.set_attn_implementation(before)
    functions = registered()
    with attention_implementation(model, backend):
        assert language_model.config._attn_implementation == backend_named(backend).implementation
    assert language_model.config._attn_implementation == before
    assert registered() == functions


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_left_behind_when_the_forward_raises(
    tiny_model: Build, pair_and_group: list[Any], backend: str
) -> None:
    model = tiny_model()
    language_model = causal_lm(model)
    functions, before = registered(), language_model.config._attn_implementation

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory, say")

    hook = language_model.model.norm.register_forward_hook(fail)
    with torch.no_grad(), pytest.raises(RuntimeError, match="say"):
        per_token_logps(model, pair_and_group, backend=backend)
    hook.remove()
    assert language_model.config._attn_implementation == before
    assert registered() == functions
    assert not language_model.lm_head._forward_hooks
    assert not language_model.lm_head._forward_pre_hooks


def test_leaving_an_inner_context_keeps_the_outer_one(tiny_model: Build) -> None:
    model = tiny_model()
    with attention_implementation(model, "split"):
        with attention_implementation(model, "split"):
            pass
        assert causal_lm(model).config._attn_implementation == "packed-split"
        assert "packed-split" in AttentionInterface._global_mapping
    assert "packed-split" not in AttentionInterface._global_mapping


def test_an_implementation_that_was_changed_in_between_is_the_one_restored(tiny_model: Build) -> None:
    model = tiny_model()
    config = causal_lm(model).config
    for before in ("sdpa", "eager"):
        causal_lm(model).set_attn_implementation(before)
        with attention_implementation(model, "split"):
            assert config._attn_implementation == "packed-split"
        assert config._attn_implementation == before


def test_a_model_put_into_another_one_later_is_switched_too(tiny_model: Build) -> None:
    model, other = tiny_model(), causal_lm(tiny_model())
    with attention_implementation(model, "split"):
        assert other.config._attn_implementation == "sdpa"
    causal_lm(model).model.layers[1].tower = other
    with attention_implementation(model, "split"):
        assert other.config._attn_implementation == "packed-split"
    assert other.config._attn_implementation == "sdpa"


def test_importing_registers_nothing() -> None:
    assert not [name for name in registered() if "packed" in name]


def test_the_package_itself_imports_nothing_heavy() -> None:
    code = "import sys, packed_impl; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_backend_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown attention backend 'flash': expected one of dense-eager, dense-sdpa"):
        backend_named("flash")


def test_every_listed_backend_exists() -> None:
    assert len({backend_named(name).implementation for name in BACKENDS}) == len(BACKENDS)


def test_only_flex_lacks_gradients_on_a_cpu() -> None:
    assert {name for name in BACKENDS if not gradient_support(name, "cpu")[0]} == {"flex"}
    assert "no backward pass on cpu" in gradient_support("flex", "cpu")[1]
    assert gradient_support("flex", "cuda") == (True, "")
    with pytest.raises(ValueError, match="unknown attention backend"):
        gradient_support("flash", "cpu")


def test_a_model_whose_attention_cannot_be_switched_is_refused(
    tiny_model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    monkeypatch.setattr(type(causal_lm(model)), "set_attn_implementation", lambda self, name: None)
    with (
        pytest.raises(ValueError, match="keeps attention implementation 'sdpa'"),
        attention_implementation(model, "split"),
    ):
        pass


def test_a_module_without_a_language_model_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear holds no transformers model"):
        causal_lm(nn.Linear(1, 1))

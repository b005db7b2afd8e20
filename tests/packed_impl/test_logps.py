from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM

from packed_impl.attention import causal_lm
from packed_impl.forward import layout_logps
from packed_impl.layout import pack
from packed_impl.step import per_token_logps

Build = Callable[..., nn.Module]


@pytest.mark.parametrize("chunk", [1, 3, 12, 13])
def test_chunks_change_nothing(
    tiny_model: Build, pair_and_group: list[Any], trained_gradients: Callable[..., dict[str, Tensor]], chunk: int
) -> None:
    model = tiny_model(torch.float64)
    whole = per_token_logps(model, pair_and_group, backend="split", logit_chunk=10**6)
    chunked = per_token_logps(model, pair_and_group, backend="split", logit_chunk=chunk)
    torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-12)
    expected = trained_gradients(model, whole)
    assert any("lm_head" in name for name in expected)
    torch.testing.assert_close(trained_gradients(model, chunked), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk", [4, 1000])
def test_the_head_sees_each_predictor_once_and_nothing_else(
    tiny_model: Build, pair_and_group: list[Any], chunk: int
) -> None:
    model = tiny_model()
    rows_seen: list[int] = []
    with causal_lm(model).lm_head.register_forward_hook(lambda head, args, out: rows_seen.append(out[..., 0].numel())):
        per_token_logps(model, pair_and_group, backend="dense-sdpa", logit_chunk=chunk)
    num_tokens = sum(len(ids) for group in pair_and_group for ids in group.positives + group.negatives)
    assert sum(rows_seen) == num_tokens
    assert max(rows_seen) <= chunk


class HalvedLogits(Qwen3ForCausalLM):
    """Scales its logits after the head, as some families do."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 0.5
        return output


@pytest.fixture
def halved(tiny_model: Build) -> nn.Module:
    model = tiny_model()
    causal_lm(model).__class__ = HalvedLogits
    return model


def test_a_scaling_after_the_head_is_kept(
    halved: nn.Module, pair_and_group: list[Any], unpacked_logps: Callable[..., list[Tensor]]
) -> None:
    actual = per_token_logps(halved, pair_and_group, backend="split")
    torch.testing.assert_close(actual, unpacked_logps(halved, pair_and_group), rtol=0, atol=2e-5)


def test_a_scaling_that_chunks_would_miss_is_refused(halved: nn.Module, pair_and_group: list[Any]) -> None:
    with pytest.raises(ValueError, match="set logit_chunk to at least 13"):
        per_token_logps(halved, pair_and_group, backend="split", logit_chunk=5)


def test_a_chunk_holds_at_least_one_predictor(tiny_model: Build, pair_and_group: list[Any]) -> None:
    with pytest.raises(ValueError, match="logit_chunk is 0"):
        per_token_logps(tiny_model(), pair_and_group, backend="split", logit_chunk=0)


def test_a_model_without_a_head_is_refused(tiny_model: Build, pair_and_group: list[Any]) -> None:
    with pytest.raises(ValueError, match="Qwen3Model has no output head"):
        per_token_logps(causal_lm(tiny_model()).model, pair_and_group, backend="split")


def test_the_shift_by_one_of_an_unpacked_row_would_be_noticed(tiny_model: Build) -> None:
    """The neighbour in the row is the wrong predictor of a branch's first token, and of that token alone."""
    group = SimpleNamespace(
        prompt_ids=(1, 2, 3), positives=((4, 5),), negatives=((6, 7),), completion_masks=(), images=()
    )
    layout = pack([group])
    shifted = replace(layout, predictor_slots=layout.token_slots - 1)
    model = tiny_model()
    with torch.no_grad():
        right = torch.cat(layout_logps(model, layout, backend="split"))
        wrong = torch.cat(layout_logps(model, shifted, backend="split"))
    assert (right - wrong).ne(0).tolist() == [False, False, True, False]
    assert (right - wrong).abs().max() > 0.1

from __future__ import annotations

import pytest
import torch

from reference_impl.decoder import hidden_states
from reference_impl.lora import LoraFactors, linear


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_an_adapter_equals_its_product_merged_into_the_weight() -> None:
    x, weight, bias, A, B = normal(4, 6, seed=1), normal(5, 6, seed=2), normal(5, seed=3), normal(2, 6), normal(5, 2)
    actual = linear(x, "m", {"m.weight": weight, "m.bias": bias}, {"m": LoraFactors(A, B, 0.7)})
    expected = torch.nn.functional.linear(x, weight + 0.7 * (B @ A), bias)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


def test_derivatives_of_a_linear_module_match_finite_differences() -> None:
    weight = normal(5, 6, seed=2)

    def module(x: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return linear(x, "m", {"m.weight": weight}, {"m": LoraFactors(A, B, 0.7)})

    inputs = tuple(tensor.requires_grad_() for tensor in (normal(4, 6, seed=1), normal(2, 6), normal(5, 2)))
    assert torch.autograd.gradcheck(module, inputs)


def test_the_graph_keeps_no_wide_copy_of_a_narrow_weight() -> None:
    weight, kept = normal(5, 6).float(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        linear(normal(4, 6).requires_grad_(), "m", {"m.weight": weight}, {})
    assert [(tuple(tensor.shape), tensor.dtype) for tensor in kept] == [((5, 6), torch.float32)]


def test_a_head_without_weights_is_the_embedding() -> None:
    embedding, x = normal(7, 6), normal(2, 6, seed=1)
    assert torch.equal(linear(x, "lm_head", {"model.embed_tokens.weight": embedding}, {}), x @ embedding.T)


@pytest.mark.parametrize("module", ["model.layers.9.self_attn.q_proj", "self_attn.q_proj", "model.embed_tokens"])
def test_an_adapter_on_no_module_is_named(module, tiny) -> None:
    made = tiny(adapters=False)
    factors = LoraFactors(torch.zeros(2, 32), torch.zeros(48, 2), 1.0)
    with pytest.raises(ValueError, match=f"LoRA on {module}: no linear module of this decoder"):
        hidden_states([1, 2], made.weights, made.config, {module: factors})


def test_an_adapter_of_other_sizes_is_refused(tiny) -> None:
    made = tiny(adapters=False)
    factors = LoraFactors(torch.zeros(2, 32), torch.zeros(32, 2), 1.0)
    with pytest.raises(ValueError, match=r"\[out, in\] = \(32, 32\): the module has \(48, 32\)"):
        hidden_states([1, 2], made.weights, made.config, {"model.layers.0.self_attn.q_proj": factors})


def test_factors_of_two_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"A \(2, 6\) and B \(5, 3\)"):
        LoraFactors(torch.zeros(2, 6), torch.zeros(5, 3), 1.0)

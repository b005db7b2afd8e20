from __future__ import annotations

import numpy as np
import pytest
import torch

from reference_impl.decoder import hidden_states
from reference_impl.experts import Experts, experts_mlp
from reference_impl.lora import LoraFactors

SIZES = {"count": 5, "per_token": 2, "intermediate_size": 3, "shares_sum_to_one": True, "layers": frozenset({0})}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parts(count: int = 5, width: int = 4, inner: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return normal(count, width, seed=1), normal(count, 2 * inner, width, seed=2), normal(count, width, inner, seed=3)


def of_router(x: torch.Tensor, router: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, experts: Experts):
    return experts_mlp(x, x @ router.T, gate_up, down, experts)


def one_token(x: np.ndarray, router: np.ndarray, gate_up: np.ndarray, down: np.ndarray, experts: Experts) -> np.ndarray:
    """The definition for one token, expert by expert."""
    scores = router @ x
    shares = np.exp(scores) / np.exp(scores).sum()
    chosen = sorted(range(experts.count), key=lambda e: -shares[e])[: experts.per_token]
    divisor = sum(shares[e] for e in chosen) if experts.shares_sum_to_one else 1.0
    y = np.zeros_like(x)
    for e in chosen:
        gate, up = gate_up[e][: experts.intermediate_size] @ x, gate_up[e][experts.intermediate_size :] @ x
        y += shares[e] / divisor * (down[e] @ (gate / (1 + np.exp(-gate)) * up))
    return y


@pytest.mark.parametrize("per_token", [1, 2, 5])
@pytest.mark.parametrize("shares_sum_to_one", [True, False])
def test_each_token_gets_the_weighted_sum_of_its_experts(per_token, shares_sum_to_one) -> None:
    experts = Experts(**{**SIZES, "per_token": per_token, "shares_sum_to_one": shares_sum_to_one})
    x, weights = normal(7, 4), parts()
    actual = of_router(x, *weights, experts)
    for token in range(7):
        expected = one_token(x[token].numpy(), *(weight.numpy() for weight in weights), experts)
        np.testing.assert_allclose(actual[token].numpy(), expected, rtol=0, atol=1e-13)


def test_derivatives_reach_the_input_through_shares_and_experts() -> None:
    experts, weights = Experts(**SIZES), parts()
    assert torch.autograd.gradcheck(lambda x: of_router(x, *weights, experts), normal(3, 4).requires_grad_())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count of the experts is 0: it must be positive"),
        ({"per_token": 6}, "6 experts per token: a layer has 5"),
        ({"intermediate_size": -1}, "intermediate_size of the experts is -1"),
    ],
)
def test_experts_that_cannot_be_are_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        Experts(**{**SIZES, **changes})


def test_an_adapter_on_the_weights_of_experts_is_refused_with_what_may_have_one(tiny) -> None:
    made = tiny("qwen3_moe", adapters=False)
    factors = LoraFactors(torch.zeros(2, 32), torch.zeros(24, 2), 1.0)
    with pytest.raises(ValueError, match=r"LoRA on model\.layers\.0\.mlp\.experts: .* adapt the attention projections"):
        hidden_states([1, 2], made.weights, made.config, {"model.layers.0.mlp.experts": factors})

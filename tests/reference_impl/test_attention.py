from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from reference_impl.attention import causal_attention


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("window", [None, 1, 2, 4, 5, 9])
def test_attention_is_the_sum_over_the_tokens_so_far_that_lie_in_the_window(window: int | None) -> None:
    q, k, v = normal(4, 5, 6, seed=1), normal(2, 5, 6, seed=2), normal(2, 5, 6, seed=3)
    actual = causal_attention(q, k, v, window).numpy()
    for head in range(4):
        shared = head // 2
        for t in range(5):
            seen = [s for s in range(t + 1) if window is None or s > t - window]
            scores = [math.fsum((q[head, t] * k[shared, s]).tolist()) / math.sqrt(6) for s in seen]
            shares = np.exp(scores) / np.exp(scores).sum()
            expected = sum(share * v[shared, s].numpy() for s, share in zip(seen, shares, strict=True))
            np.testing.assert_allclose(actual[head, t], expected, rtol=0, atol=1e-14)


def test_a_window_of_one_token_leaves_every_value_as_it_is() -> None:
    q, k, v = normal(2, 3, 4, seed=1), normal(2, 3, 4, seed=2), normal(2, 3, 4, seed=3)
    assert torch.equal(causal_attention(q, k, v, 1), v)


def test_a_window_as_long_as_the_sequence_is_none() -> None:
    q, k, v = normal(2, 7, 4, seed=1), normal(1, 7, 4, seed=2), normal(1, 7, 4, seed=3)
    assert torch.equal(causal_attention(q, k, v, 7), causal_attention(q, k, v))
    assert not torch.equal(causal_attention(q, k, v, 6), causal_attention(q, k, v))

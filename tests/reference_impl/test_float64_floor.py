"""A transformers model after ``.double()`` is no float64 oracle: some of its steps stay in float32."""

from __future__ import annotations

import pytest
import torch

from reference_impl.pairwise import per_token_logps
from reference_impl.step import oracle_step


def largest_gap(model, made, pairs) -> float:
    expected = oracle_step(pairs, made.weights, made.config, made.lora, beta=0.4, label_smoothing=0.0, gradients=False)
    with torch.no_grad():
        actual = per_token_logps(model, pairs)
    return max(float((a - e).abs().max()) for a, e in zip(actual, expected.per_token_logps, strict=True))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("family", "std"),
    [("qwen3", 0.05), ("qwen3", 0.2), ("qwen2", 0.2), ("llama3", 0.2), ("mistral", 0.2), ("qwen3_moe", 0.2)],
)
def test_double_leaves_a_float32_error(attention, family, std, tiny, pairs) -> None:
    made = tiny(family, std=std)
    made.model.config._attn_implementation = attention
    assert 1e-10 < largest_gap(made.model, made, pairs) < 1e-5


@pytest.mark.parametrize(
    ("replaced", "attention", "explained"),
    [
        ((), "eager", False),
        (("RMSNorm",), "sdpa", False),
        (("RotaryEmbedding",), "sdpa", False),
        (("RMSNorm", "RotaryEmbedding"), "eager", False),
        (("RMSNorm", "RotaryEmbedding"), "sdpa", True),
    ],
)
def test_norms_angles_and_the_eager_softmax_explain_all_of_it(
    replaced, attention, explained, tiny, pairs, float64_throughout
) -> None:
    made = tiny()
    made.model.config._attn_implementation = attention
    gap = largest_gap(float64_throughout(made.model, replaced), made, pairs)
    assert gap < 1e-12 if explained else gap > 1e-9

"""What sets a family apart reaches the log-probs: left out of the oracle's input, the values move."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reference_impl.step import oracle_step


def step_of(made, pairs, **changes):
    made = replace(made, **changes)
    return oracle_step(pairs, made.weights, made.config, made.lora, beta=0.4, label_smoothing=0.0)


def largest(actual, expected) -> float:
    return max(float((a - e).abs().max()) for a, e in zip(actual, expected, strict=True))


def gradient_gap(actual, expected) -> float:
    right = torch.cat([expected[name].flatten() for name in expected])
    return float((torch.cat([actual[name].flatten() for name in expected]) - right).norm() / right.norm())


def without(made, feature: str) -> dict[str, object]:
    """The part of the oracle's input that lacks a feature."""
    config, weights = made.config, made.weights
    if feature.endswith("bias"):
        return {"weights": {name: w * (not name.endswith(f"{feature}")) for name, w in weights.items()}}
    if feature == "query and key norms":
        kept = {name: w for name, w in weights.items() if "q_norm" not in name and "k_norm" not in name}
        return {"weights": kept, "config": replace(config, qk_norm=False)}
    if feature == "router":
        return {"weights": {name: w * (not name.endswith("mlp.gate.weight")) for name, w in weights.items()}}
    changes = {
        "rope scaling": {"rope_scaling": None},
        "window": {"sliding_window": None},
        "shares that sum to one": {"experts": config.experts and replace(config.experts, shares_sum_to_one=False)},
        "second expert": {"experts": config.experts and replace(config.experts, per_token=1)},
    }
    return {"config": replace(config, **changes[feature])}


@pytest.mark.parametrize(
    ("family", "feature"),
    [
        ("qwen2", "q_proj.bias"),
        ("qwen2", "k_proj.bias"),
        ("qwen2", "v_proj.bias"),
        ("llama", "o_proj.bias"),
        ("llama", "gate_proj.bias"),
        ("llama", "up_proj.bias"),
        ("llama", "down_proj.bias"),
        ("qwen3", "query and key norms"),
        ("llama3", "rope scaling"),
        ("mistral", "window"),
        ("qwen2 mixed", "window"),
        ("qwen3 mixed", "window"),
        ("qwen3_moe", "router"),
        ("qwen3_moe", "shares that sum to one"),
        ("qwen3_moe", "second expert"),
    ],
)
def test_a_feature_that_is_left_out_moves_log_probs_and_gradients(family, feature, tiny, pairs) -> None:
    biases = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    made = tiny(family, **biases)
    right, wrong = step_of(made, pairs), step_of(made, pairs, **without(made, feature))
    assert largest(wrong.per_token_logps, right.per_token_logps) > 1e-2
    assert gradient_gap(wrong.gradients, right.gradients) > 1e-2


def test_a_window_changes_nothing_until_a_key_leaves_it(tiny, pairs) -> None:
    """With a window of three the fourth token is the first that misses a key."""
    made = tiny("mistral")
    wide = step_of(made, pairs, **without(made, "window"))
    right = step_of(made, pairs)
    # The second prompt has one token: the first two log-probs of three are predicted at places 0, 1 and 2.
    assert torch.equal(right.per_token_logps[2], wide.per_token_logps[2])
    # The first prompt has five, so that all its responses are predicted from place 4 on.
    assert ((right.per_token_logps[0] - wide.per_token_logps[0]).abs() > 1e-4).all()


def test_scaled_frequencies_matter_more_the_farther_apart_tokens_are(tiny, random_pair) -> None:
    made = tiny("llama3")
    pair = random_pair(150, 5, 5, seed=1)
    far = step_of(made, [pair], **without(made, "rope scaling"))
    assert largest(far.per_token_logps, step_of(made, [pair]).per_token_logps) > 0.1

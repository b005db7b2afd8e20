from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reference_impl.config import from_hf_config
from reference_impl.decoder import hidden_states, logits_at, rms_norm

IDS = (5, 17, 3, 22, 9, 31, 8, 44, 2)


def all_logits(ids, made) -> torch.Tensor:
    hidden = hidden_states(ids, made.weights, made.config, made.lora)
    return logits_at(hidden, range(len(ids)), made.weights, made.lora)


def test_rms_norm_of_three_and_four() -> None:
    # mean of 9 and 16 is 12.5, so with eps 3.5 the divisor is 4.
    actual = rms_norm(torch.tensor([3.0, 4.0], dtype=torch.float64), torch.tensor([2.0, 1.0]), 3.5)
    assert actual.tolist() == [1.5, 1.0]


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("qwen3", {}),
        ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
        ("qwen3", {"num_key_value_heads": 4, "head_dim": 20}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("llama3", {}),
        ("mistral", {}),
        ("mistral", {"sliding_window": 1}),
        ("mistral", {"sliding_window": None}),
        ("qwen2 mixed", {}),
        ("qwen2 mixed", {"max_window_layers": 0}),
        ("qwen3 mixed", {}),
        (
            "qwen3 mixed",
            {"num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        ),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 2}),
        ("qwen3_moe", {"norm_topk_prob": False, "num_experts_per_tok": 3, "attention_bias": True}),
        ("qwen3_moe", {"mlp_only_layers": [1], "tie_word_embeddings": True}),
        ("qwen3_moe", {"decoder_sparse_step": 2, "num_experts_per_tok": 1}),
    ],
)
@pytest.mark.parametrize("adapters", [False, True])
def test_transformers_and_peft_agree_once_they_compute_in_float64(
    family, overrides, adapters, tiny, float64_throughout
) -> None:
    made = tiny(family, adapters=adapters, **overrides)
    model = float64_throughout(made.model)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
    torch.testing.assert_close(all_logits(IDS, made), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["qwen2 mixed", "qwen3 mixed", "mistral"])
def test_windows_are_those_of_eager_attention_too(family, tiny, float64_throughout) -> None:
    """Its softmax is float32 whatever the model's dtype; a key too many or too few moves logits by tenths."""
    made = tiny(family, adapters=False)
    made.model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = float64_throughout(made.model)(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
    actual = all_logits(IDS, made)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    window = made.config.sliding_window
    for wrong in (window.size - 1, window.size + 1):
        moved = all_logits(IDS, replace(made, config=replace(made.config, sliding_window=replace(window, size=wrong))))
        assert (moved - expected).abs().max() > 0.1


@pytest.mark.parametrize("family", ["qwen2 mixed", "qwen3 mixed"])
def test_a_window_in_the_other_layer_is_visible(family, tiny) -> None:
    made = tiny(family)
    window = made.config.sliding_window
    other = replace(window, layers=frozenset({0, 1}) - window.layers)
    moved = all_logits(IDS, replace(made, config=replace(made.config, sliding_window=other)))
    assert (moved - all_logits(IDS, made)).abs().max() > 0.1


@pytest.mark.parametrize("family", ["qwen3", "llama3", "mistral", "qwen3 mixed", "qwen3_moe"])
def test_long_sequences_agree_too(family, tiny, float64_throughout) -> None:
    made = tiny(family, adapters=False)
    ids = torch.randint(61, (400,), generator=torch.Generator().manual_seed(4)).tolist()
    with torch.no_grad():
        expected = float64_throughout(made.model)(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    torch.testing.assert_close(all_logits(ids, made), expected, rtol=0, atol=1e-11)


def test_a_later_token_changes_no_earlier_logit_by_a_single_bit(tiny) -> None:
    made = tiny()
    changed = (*IDS[:6], 60, *IDS[7:])
    before, after = all_logits(IDS, made), all_logits(changed, made)
    assert torch.equal(before[:6], after[:6])
    assert ((before[6:] - after[6:]).abs().amax(1) > 1e-3).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_weights_are_widened_before_anything_is_computed(dtype, tiny) -> None:
    made = tiny()
    narrow = {name: weight.to(dtype) for name, weight in made.weights.items()}
    wide = {name: weight.double() for name, weight in narrow.items()}
    actual = hidden_states(IDS, narrow, made.config, made.lora)
    assert actual.dtype == torch.float64
    assert torch.equal(actual, hidden_states(IDS, wide, made.config, made.lora))


def test_only_weights_that_ask_for_a_gradient_get_one(tiny) -> None:
    made = tiny(adapters=False)
    assert not hidden_states(IDS, made.weights, made.config).requires_grad
    asking = {name: weight.clone().requires_grad_() for name, weight in made.weights.items()}
    hidden_states(IDS, asking, made.config).square().sum().backward()
    assert [name for name, weight in asking.items() if weight.grad is None] == ["lm_head.weight"]


@pytest.mark.parametrize(
    ("shifted", "least"), [([0, 1, 2, 3, 4, 6, 7, 8, 9], 1e-2), ([0, 1, 2, 3, 4, 4, 5, 6, 7], 1e-2)]
)
def test_positions_off_by_one_from_some_token_on_are_visible(shifted, least, tiny) -> None:
    made = tiny()
    right = hidden_states(IDS, made.weights, made.config)
    wrong = hidden_states(IDS, made.weights, made.config, positions=torch.tensor(shifted))
    assert torch.equal(right[:5], wrong[:5])
    assert (right[5:] - wrong[5:]).abs().max() > least


def test_moving_all_positions_together_is_invisible(tiny) -> None:
    """Rotary embedding is relative: a check of absolute positions cannot use log-probs."""
    made = tiny()
    moved = hidden_states(IDS, made.weights, made.config, positions=torch.arange(len(IDS)) + 1)
    torch.testing.assert_close(moved, hidden_states(IDS, made.weights, made.config), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ((), "no tokens"),
        ((3, 61), "token id 61 at place 1: outside the vocabulary of 61 tokens"),
        ((-1,), "token id -1"),
    ],
)
def test_tokens_without_an_embedding_are_refused(ids, message, tiny) -> None:
    made = tiny(adapters=False)
    with pytest.raises(ValueError, match=message):
        hidden_states(ids, made.weights, made.config)


def test_positions_of_another_length_are_refused(tiny) -> None:
    made = tiny(adapters=False)
    with pytest.raises(ValueError, match=r"positions of shape \(2,\) for 3 tokens"):
        hidden_states((1, 2, 3), made.weights, made.config, positions=torch.tensor([0, 1]))


def test_a_config_of_another_family_does_not_fit_the_weights(tiny) -> None:
    made = tiny("qwen2", adapters=False)
    as_llama = from_hf_config({**made.model.config.to_dict(), "model_type": "llama"})
    with pytest.raises(ValueError, match=r"does not use: .*q_proj\.bias"):
        hidden_states(IDS, made.weights, as_llama)

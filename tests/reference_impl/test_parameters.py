from __future__ import annotations

import math

import pytest
import torch

from reference_impl.config import from_hf_config
from reference_impl.decoder import hidden_states
from reference_impl.parameters import weight_shapes

QWEN3 = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}


HEADS_32_OVER_8 = {"num_attention_heads": 32, "num_key_value_heads": 8}


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "inner", "tied", "published"),
    [
        (1024, 28, 16, 3072, True, 596_049_920),
        (2560, 36, 32, 9728, True, 4_022_468_096),
        (4096, 36, 32, 12288, False, 8_190_735_360),
    ],
)
def test_the_named_weights_add_up_to_the_published_size(
    hidden: int, layers: int, heads: int, inner: int, tied: bool, published: int
) -> None:
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
    }
    shapes = weight_shapes(from_hf_config({**QWEN3, **sizes, "tie_word_embeddings": tied}))
    assert sum(math.prod(shape) for shape in shapes.values()) == published


def published(model_type: str, hidden: int, layers: int, inner: int, vocab: int, **others: object) -> dict[str, object]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner, "vocab_size": vocab}
    return {"model_type": model_type, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e4, **sizes, **others}


@pytest.mark.parametrize(
    ("hf_config", "published"),
    [
        # Llama-3.2-1B, Qwen2-0.5B, Mistral-7B-v0.1, Qwen3-30B-A3B
        (
            published("llama", 2048, 16, 8192, 128256, **HEADS_32_OVER_8, tie_word_embeddings=True),
            1_235_814_400,
        ),
        (
            published(
                "qwen2", 896, 24, 4864, 151936, num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True
            ),
            494_032_768,
        ),
        (published("mistral", 4096, 32, 14336, 32000, **HEADS_32_OVER_8, sliding_window=4096), 7_241_732_096),
        (
            published(
                "qwen3_moe", 2048, 48, 6144, 151936, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
                num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
                decoder_sparse_step=1, mlp_only_layers=[],
            ),
            30_532_122_624,
        ),
    ],
    ids=["llama", "qwen2", "mistral", "qwen3_moe"],
)  # fmt: skip
def test_the_named_weights_of_other_families_add_up_too(hf_config: dict[str, object], published: int) -> None:
    shapes = weight_shapes(from_hf_config(hf_config))
    assert sum(math.prod(shape) for shape in shapes.values()) == published


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "mistral", "qwen3_moe"])
@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_are_those_of_the_checkpoint(family, tied, tiny) -> None:
    made = tiny(family, adapters=False, tie_word_embeddings=tied)
    assert weight_shapes(made.config) == {name: tuple(weight.shape) for name, weight in made.weights.items()}


def test_layers_without_experts_keep_their_mlp(tiny) -> None:
    made = tiny("qwen3_moe", adapters=False, mlp_only_layers=[0])
    assert weight_shapes(made.config) == {name: tuple(weight.shape) for name, weight in made.weights.items()}
    assert made.weights["model.layers.0.mlp.up_proj.weight"].shape == (40, 32)
    assert made.weights["model.layers.1.mlp.experts.gate_up_proj"].shape == (5, 48, 32)


def test_a_missing_weight_is_named(tiny) -> None:
    made = tiny(adapters=False)
    weights = {name: weight for name, weight in made.weights.items() if "k_norm" not in name}
    with pytest.raises(
        ValueError, match=r"2 weights missing: model\.layers\.0\.self_attn\.k_norm\.weight, model\.layers\.1"
    ):
        hidden_states([1, 2], weights, made.config)


def test_an_unused_weight_is_named(tiny) -> None:
    made = tiny(adapters=False)
    weights = {**made.weights, "model.layers.0.self_attn.q_proj.bias": torch.zeros(48)}
    with pytest.raises(ValueError, match=r"does not use: model\.layers\.0\.self_attn\.q_proj\.bias$"):
        hidden_states([1, 2], weights, made.config)


def test_a_head_beside_a_tied_embedding_is_refused_with_the_reason(tiny) -> None:
    made = tiny(adapters=False, tie_word_embeddings=True)
    weights = {**made.weights, "lm_head.weight": made.weights["model.embed_tokens.weight"]}
    with pytest.raises(ValueError, match=r"tied to the embedding: leave lm_head\.weight out"):
        hidden_states([1, 2], weights, made.config)


def test_a_weight_of_another_shape_is_named(tiny) -> None:
    made = tiny(adapters=False)
    weights = {**made.weights, "model.norm.weight": torch.ones(31)}
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \(31,\): the config asks for \(32,\)"):
        hidden_states([1, 2], weights, made.config)

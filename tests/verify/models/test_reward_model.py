"""The reward model of a run: the blocks and adapters of its causal LM, and a head that reads the last token."""

from __future__ import annotations

import pytest
import torch

from verify.models.configs import TINY_CONFIGS
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, build_model, build_reward_model
from verify.models.reward_model import with_score_head
from verify.trained_gradients import trained_name

LORA = LoraSpec(strength=0.3)


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_blocks_and_adapters_are_those_of_the_causal_lm(name: str) -> None:
    request = ModelRequest(name=name, lora=LORA)
    causal = dict(build_model(request, "float32").model.named_parameters())
    reward = dict(build_reward_model(request, "float32").model.named_parameters())
    assert reward.keys() - causal.keys() == {"base_model.model.score.weight"}
    assert causal.keys() - reward.keys() <= {"base_model.model.lm_head.weight"}
    assert all(torch.equal(reward[key], causal[key]) for key in reward.keys() & causal.keys())


def test_the_head_is_seeded_trained_and_exact_in_bfloat16() -> None:
    heads = {
        (seed, dtype): build_reward_model(ModelRequest(name="tiny", num_layers=1, seed=seed), dtype).model
        for seed, dtype in ((0, "float64"), (0, "bfloat16"), (1, "float64"))
    }
    weights = {key: model.get_base_model().score.weight.detach().double() for key, model in heads.items()}
    assert torch.equal(weights[0, "float64"], weights[0, "bfloat16"])
    assert not torch.equal(weights[0, "float64"], weights[1, "float64"])
    trained = [trained_name(n) for n, p in heads[0, "float64"].named_parameters() if p.requires_grad]
    assert "score.weight" in trained
    assert all(".lora_" in name for name in trained if name != "score.weight")


def test_no_token_passes_for_padding() -> None:
    """The reward of a sequence that ends in any token is read there: of two that differ in it alone it differs."""
    model = build_reward_model(ModelRequest(name="tiny", num_layers=1, lora=LORA), "float32").model
    assert model.config.pad_token_id is None
    with torch.no_grad():
        rewards = [float(model(input_ids=torch.tensor([[5, 6, 7, last]])).logits) for last in range(0, 257, 32)]
    assert len(set(rewards)) == len(rewards)


def test_a_family_without_such_a_classifier_is_refused() -> None:
    model = build_model(ModelRequest(name="tiny-cohere"), "float32").model.get_base_model()
    with pytest.raises(ValueError, match="model type cohere: transformers has no sequence classifier"):
        with_score_head(model, seed=0)

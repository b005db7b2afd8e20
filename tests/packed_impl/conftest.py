"""Tiny models with sharp weights and a LoRA that does something, and their ordinary unpacked log-probs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
    MistralForSequenceClassification,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "qwen2_moe": (Qwen2MoeConfig, Qwen2MoeForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "qwen3-classifier": (Qwen3Config, Qwen3ForSequenceClassification),
    "llama-classifier": (LlamaConfig, LlamaForSequenceClassification),
    "mistral-classifier": (MistralConfig, MistralForSequenceClassification),
}


@dataclass(frozen=True)
class Group:
    """The least that a preference group is; deliberately not the project's own type."""

    prompt_ids: tuple[int, ...]
    positives: tuple[tuple[int, ...], ...]
    negatives: tuple[tuple[int, ...], ...] = ()
    completion_masks: tuple[tuple[bool, ...], ...] = ()
    images: tuple[Any, ...] = ()


def with_lora(model: nn.Module, targets: Sequence[str], trained_in_full: Sequence[str] = ()) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers deprecates
        return get_peft_model(
            model, LoraConfig(r=4, target_modules=list(targets), modules_to_save=list(trained_in_full) or None)
        )


def draw_weights(model: nn.Module, seed: int) -> None:
    """Std 0.2: attention is peaked, so a wrong mask moves log-probs by whole nats."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)


@pytest.fixture
def tiny_model() -> Callable[..., nn.Module]:
    def build(
        dtype: torch.dtype = torch.float32,
        *,
        family: str = "qwen3",
        targets: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "lm_head"),
        trained_in_full: Sequence[str] = (),
        seed: int = 0,
        **config: object,
    ) -> nn.Module:
        config_class, model_class = FAMILIES[family]
        base = model_class(config_class(**{**SIZES, **config}))
        model = with_lora(base, targets, trained_in_full).to(torch.float32)
        draw_weights(model, seed)
        return model.to(dtype).eval()

    return build


@pytest.fixture
def unpacked_logps() -> Callable[..., list[Tensor]]:
    """Each sequence alone through the model, with transformers' default attention and the ordinary shift by one."""

    def run(model: nn.Module, groups: Sequence[Group]) -> list[Tensor]:
        result = []
        for group in groups:
            for response in group.positives + group.negatives:
                ids = torch.tensor([group.prompt_ids + response])
                logits = model(input_ids=ids, use_cache=False).logits[0, len(group.prompt_ids) - 1 : -1]
                logits = logits if logits.dtype == torch.float64 else logits.float()
                result.append(logits.log_softmax(-1)[torch.arange(len(response)), torch.tensor(response)])
        return result

    return run


@pytest.fixture
def trained_gradients() -> Callable[..., dict[str, Tensor]]:
    """Gradient of a sum that weighs every completion token differently, so that no two errors cancel by symmetry."""

    def run(model: nn.Module, logps: Sequence[Tensor]) -> dict[str, Tensor]:
        flat = torch.cat(list(logps))
        weights = torch.linspace(-1.0, 2.0, len(flat), dtype=flat.dtype)
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        gradients = torch.autograd.grad((weights * flat).sum(), list(named.values()))
        return dict(zip(named, gradients, strict=True))

    return run


@pytest.fixture
def pair_and_group() -> list[Group]:
    """A DPO pair with a long prompt, and a 2+1 group with the shortest prompt there is."""
    return [
        Group((1, 2, 3, 4, 5), ((6, 7, 8),), ((9, 10, 11, 12),)),
        Group((7,), ((3, 3), (1,)), ((5, 6, 7),)),
    ]


@pytest.fixture
def make_group() -> type[Group]:
    return Group

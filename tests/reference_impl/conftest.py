"""Tiny random models with everything switched on that a real checkpoint could have, and preference groups for them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from reference_impl.config import DecoderConfig, from_hf_config
from reference_impl.lora import LoraFactors

VOCAB_SIZE = 61
# heads x head_dim (48) differs from hidden (32), four query heads share two key heads.
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 40,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
FAMILIES: dict[str, tuple[Any, Any]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "llama3": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "qwen2 mixed": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3 mixed": (Qwen3Config, Qwen3ForCausalLM),
}
# Of six planes the first turns ten times over the original length, the next two in between, the others less than once.
LLAMA3_SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "llama3": {"rope_parameters": LLAMA3_SCALING},
    "mistral": {"sliding_window": 3},
    # The one names the layers that have the window, the other the first of them.
    "qwen2 mixed": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3 mixed": {
        "use_sliding_window": True,
        "sliding_window": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen3_moe": {
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}
ATTENTION_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_TARGETS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Pair:
    prompt_ids: tuple[int, ...]
    positives: tuple[tuple[int, ...], ...]
    negatives: tuple[tuple[int, ...], ...]
    completion_masks: tuple[tuple[bool, ...], ...] = ()
    images: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Tiny:
    """One random model four ways: transformers, with peft on top, and as the oracle's weights and factors."""

    model: nn.Module
    config: DecoderConfig
    weights: Mapping[str, Tensor]
    lora: Mapping[str, LoraFactors]


def build_model(family: str, std: float, seed: int, overrides: Mapping[str, Any]) -> Any:
    config_class, model_class = FAMILIES[family]
    fields = {**SIZES, **OF_FAMILY.get(family, {}), **overrides}
    config = config_class(**fields, attn_implementation="sdpa", experts_implementation="eager")
    model = model_class(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std
            # A norm weight of one or a bias of zero would hide that it is not applied.
            parameter.copy_(1 + noise if name.endswith("norm.weight") else noise)
    return model


def oracle_weights(model: Any) -> dict[str, Tensor]:
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    return weights


def add_adapters(model: Any, seed: int, std: float = 0.2) -> tuple[Any, dict[str, LoraFactors]]:
    """Wrap with peft, draw both factors (peft starts with B = 0), and read them as the oracle's."""
    # peft warns about an adapter on a tied head; the tied models do without one. Under experts it would make adapters
    # on the weights of experts of the names of an MLP's projections.
    mlp = () if model.config.model_type == "qwen3_moe" else MLP_TARGETS
    head = () if model.config.tie_word_embeddings else ("lm_head",)
    adapter = LoraConfig(r=3, lora_alpha=6, target_modules=[*ATTENTION_TARGETS, *mlp, *head], lora_dropout=0.0)
    with warnings.catch_warnings():
        # peft asks transformers for an attribute by its deprecated name.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        wrapped = get_peft_model(model, adapter).double().eval()
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, dict[str, Tensor]] = {}
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)
                module, side = name.removeprefix("base_model.model.").split(".lora_")
                found.setdefault(module, {})[side[0]] = parameter.detach().clone()
    return wrapped, {name: LoraFactors(A=sides["A"], B=sides["B"], scaling=2.0) for name, sides in found.items()}


@pytest.fixture
def tiny() -> Callable[..., Tiny]:
    """Factory of models; weights at std 0.2 make a layout fault move log-probs by tenths of nats and more."""

    def make(
        family: str = "qwen3", *, std: float = 0.2, seed: int = 0, adapters: bool = True, **overrides: Any
    ) -> Tiny:
        model = build_model(family, std, seed, overrides)
        config, weights = from_hf_config(model.config.to_dict()), oracle_weights(model)
        if not adapters:
            return Tiny(model, config, weights, {})
        wrapped, lora = add_adapters(model, seed + 1)
        return Tiny(wrapped, config, weights, lora)

    return make


@pytest.fixture
def pairs() -> list[Pair]:
    """Two pairs; lengths differ everywhere, one prompt and one completion have a single token."""
    return [
        Pair((5, 17, 3, 22, 9), ((31, 8, 44, 2),), ((12, 50, 7, 7, 19, 40),)),
        Pair((58,), ((4, 33, 21),), ((6,),)),
    ]


@pytest.fixture
def many() -> list[Pair]:
    """Groups of 2+3 and of 1+1, masks on the first: no two completions have equally many supervised tokens."""
    return [
        Pair(
            (5, 17, 3),
            ((31, 8, 44, 2), (9, 9)),
            ((12, 50, 7, 7, 19), (40,), (1, 2, 3)),
            (
                (True, False, True, True),
                (False, True),
                (True, True, True, True, False),
                (True,),
                (False, True, True),
            ),
        ),
        Pair((58, 6), ((4, 33, 21),), ((6,),)),
    ]


@pytest.fixture
def examples() -> list[Pair]:
    """SFT data: one example with a turn of somebody else in its middle, and two rollouts of one prompt."""
    return [
        Pair((5, 17, 3, 22), ((31, 8, 44, 2, 19, 7),), (), ((True, True, False, False, True, True),)),
        Pair((58,), ((4, 33, 21), (6,)), ()),
    ]


@pytest.fixture
def random_pair() -> Callable[..., Pair]:
    def make(num_prompt: int, num_chosen: int, num_rejected: int, seed: int) -> Pair:
        generator = torch.Generator().manual_seed(seed)

        def draw(length: int) -> tuple[int, ...]:
            return tuple(torch.randint(VOCAB_SIZE, (length,), generator=generator).tolist())

        return Pair(draw(num_prompt), (draw(num_chosen),), (draw(num_rejected),))

    return make


def _norm64(module: Any, x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


def _rotary64(module: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    half, rope = module.inv_freq.numel(), module.config.rope_parameters
    frequencies = torch.tensor(
        [_slowed(rope["rope_theta"] ** (-i / half), rope) for i in range(half)], dtype=torch.float64
    )
    angles = torch.einsum("bt,h->bth", position_ids.double(), frequencies).repeat(1, 1, 2)
    return angles.cos(), angles.sin()


def _slowed(frequency: float, rope: Mapping[str, Any]) -> float:
    """Llama 3's scaling case by case, by wavelengths."""
    if rope["rope_type"] == "default":
        return frequency
    length, wavelength = rope["original_max_position_embeddings"], 2 * math.pi / frequency
    if wavelength < length / rope["high_freq_factor"]:
        return frequency
    if wavelength > length / rope["low_freq_factor"]:
        return frequency / rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / rope["factor"] + smooth * frequency


def _router64(module: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a router returns: scores of all experts, shares of the chosen ones, and which these are."""
    scores = hidden.reshape(-1, hidden.shape[-1]) @ module.weight.T
    shares, chosen = torch.softmax(scores, -1).sort(descending=True, dim=-1)
    shares, chosen = shares[:, : module.top_k], chosen[:, : module.top_k]
    return scores, shares / shares.sum(-1, keepdim=True) if module.norm_topk_prob else shares, chosen


@pytest.fixture
def float64_throughout() -> Callable[..., Any]:
    """Replace what transformers computes in float32 even after ``.double()``; its SDPA path has no float32 softmax."""

    def replace(model: Any, parts: tuple[str, ...] = ("RMSNorm", "RotaryEmbedding", "TopKRouter")) -> Any:
        forwards = {"RMSNorm": _norm64, "RotaryEmbedding": _rotary64, "TopKRouter": _router64}
        for module in model.modules():
            for part in parts:
                if type(module).__name__.endswith(part):
                    module.forward = partial(forwards[part], module)
        return model

    return replace

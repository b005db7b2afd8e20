"""LoRA adapters with both factors away from zero.

At the usual initialisation B = 0: the policy equals the reference, the loss is ln 2 whatever a mask does, and every
gradient of A is exactly zero. Such a run proves nothing, so cases draw both factors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from verify.models.vision import VISION_TOWER

ATTENTION_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
LORA_TARGETS = (*ATTENTION_TARGETS, "gate_proj", "up_proj", "down_proj")
_CHOOSERS = frozenset({"gate", "router"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec:
    """Rank, scaling and strength of the adapters.

    Args:
        rank: Rank of the update.
        alpha: PEFT's ``lora_alpha``; the update is scaled by alpha / rank.
        strength: RMS of the update relative to the RMS of the weight it is added to.
        targets: Names of the linear layers that get an adapter, where the model has them: under experts only those of
            attention are linear layers. A model that has none of them gets adapters on all linear layers of its blocks.
    """

    rank: int = 8
    alpha: int = 16
    strength: float = 0.1
    targets: tuple[str, ...] = LORA_TARGETS

    @property
    def scaling(self) -> float:
        """Factor in front of B A."""
        return self.alpha / self.rank

    def targets_in(self, *, has_experts: bool) -> tuple[str, ...]:
        """The targets that a model has.

        The weights of experts are tensors of their own, for which PEFT takes the MLP's names, also where one layer has
        an MLP: it would put another kind of adapter on them.

        Args:
            has_experts: Some MLP is made of experts.

        Raises:
            ValueError: None is left.
        """
        targets = tuple(name for name in self.targets if not has_experts or name in ATTENTION_TARGETS)
        if not targets:
            raise ValueError(
                f"adapters on {', '.join(self.targets)} of a model with experts: give some of "
                f"{', '.join(ATTENTION_TARGETS)}; adapters on the weights of experts are not supported"
            )
        return targets


def add_lora(model: Any, spec: LoraSpec, *, seed: int, task_type: str | None = "CAUSAL_LM") -> Any:
    """Wrap a model with PEFT and draw both factors from a seeded generator.

    A ~ N(0, 1 / in), B ~ N(0, b^2) with b chosen so that RMS(scaling * B A) = strength * RMS(W). Values are rounded
    to bfloat16, so that every dtype runs the same adapter. What sees images gets none: it has no gradient where a case
    has no image.

    Args:
        model: A transformers causal LM, or another model of the same layers, which gets the same adapters.
        spec: Rank, scaling, strength, targets.
        seed: Seed of the factors.
        task_type: PEFT's, which chooses the wrapper; None for the plain one.

    Returns:
        The PEFT model in eval mode; only LoRA tensors require grad.
    """
    peft_model = with_adapters(model, spec, task_type=task_type)
    _draw_factors(peft_model, "default", spec, seed)
    return peft_model.eval()


def with_adapters(model: Any, spec: LoraSpec, *, task_type: str | None = "CAUSAL_LM") -> Any:
    """Wrap a model with PEFT; both factors are as PEFT makes them.

    Args:
        model: A transformers causal LM, or another model of the same layers.
        spec: Rank, scaling, targets.
        task_type: PEFT's, which chooses the wrapper; None for the plain one.

    Returns:
        The PEFT model.
    """
    names = [name for name, _ in model.named_parameters()]
    has_experts = any(".experts." in name for name in names)
    named = spec.targets_in(has_experts=has_experts)
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=0.0,
        target_modules=list(named if any(name in named for name in _linear_layers(model)) else _linear_layers(model)),
        exclude_modules=rf".*\b{VISION_TOWER}\b.*" if any(VISION_TOWER in name for name in names) else None,
        bias="none",
        task_type=task_type,
    )
    with _peft_says_nothing():
        return get_peft_model(model, config)


@contextmanager
def _peft_says_nothing() -> Iterator[None]:
    with warnings.catch_warnings():
        # peft asks transformers for a property under its former name.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        # GPT-2's linear layers hold their weights transposed, which peft finds out and says.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False", category=UserWarning)
        yield


def add_frozen_adapter(model: Any, name: str, spec: LoraSpec, *, seed: int) -> None:
    """Give a model a second adapter on the same layers, which is not trained and not active.

    Args:
        model: A model of :func:`add_lora`.
        name: Name of the adapter.
        spec: Rank, scaling, strength of both adapters.
        seed: Seed of its factors.
    """
    with _peft_says_nothing():
        model.add_adapter(name, replace(model.peft_config["default"]))
    _draw_factors(model, name, spec, seed)
    for parameter_name, parameter in model.named_parameters():
        if f".{name}." in parameter_name:
            parameter.requires_grad_(False)
    model.eval()


def _draw_factors(model: Any, adapter: str, spec: LoraSpec, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in sorted(model.named_modules()):
            if not hasattr(module, "lora_A") or adapter not in module.lora_A:
                continue
            weight = module.base_layer.weight
            factor_a, factor_b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
            rms = float(weight.float().square().mean().sqrt())
            if rms == 0:
                raise ValueError(f"{name}: the weight is zero, so no adapter strength can be set against it")
            std_a = 1 / math.sqrt(factor_a.shape[1])
            std_b = spec.strength * rms / (spec.scaling * math.sqrt(spec.rank) * std_a)
            for factor, std in ((factor_a, std_a), (factor_b, std_b)):
                factor.copy_(rounded_normal(factor.shape, std, generator))


def _linear_layers(model: Any) -> list[str]:
    """Last parts of the names of linear layers that stand in a numbered block, without what chooses experts."""
    return sorted(
        {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear | Conv1D) and any(part.isdigit() for part in name.split("."))
        }
        - _CHOOSERS
    )


def rounded_normal(shape: torch.Size, std: float, generator: torch.Generator) -> Tensor:
    """Normal values that bfloat16 represents exactly, as float32 on the CPU."""
    return (torch.randn(shape, generator=generator) * std).to(torch.bfloat16).to(torch.float32)

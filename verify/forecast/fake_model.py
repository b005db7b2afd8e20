"""Models whose tensors have a shape, a dtype and no memory."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM
from transformers.initialization import no_init_weights

from verify.forecast.kernels import kernels_of
from verify.forecast.request import Training
from verify.models.advice import without_advice
from verify.models.lora import with_adapters
from verify.models.random_weights import implementations
from verify.subjects.path_calls import decoder_layers_of


def build_fake(
    config: Any, training: Training, *, num_layers: int, dtype: torch.dtype, fake: FakeTensorMode, device_type: str
) -> Any:
    """Build a causal LM that computes shapes.

    Args:
        config: A transformers config; left as it is.
        training: What is trained, and how.
        num_layers: Depth to build.
        dtype: Of the weights; adapters are float32 on half-precision weights, as PEFT has them.
        fake: What its tensors belong to.
        device_type: "cpu" or "cuda": whose attention kernels run.

    Returns:
        The model on a fake CPU, in training mode; with adapters if these are trained.
    """
    cut = type(config)(**{**config.to_dict(), **_depth(config, num_layers)})
    with torch.device("meta"), no_init_weights(), without_advice(), warnings.catch_warnings():
        # PEFT says what it did not find in families whose experts it knows; what comes of it is an error of its own.
        warnings.simplefilter("ignore", RuntimeWarning)
        model = AutoModelForCausalLM.from_config(cut, dtype=dtype, **implementations(cut))
        model.tie_weights()
        if training.train == "lora":
            model = with_adapters(model.requires_grad_(False), training.lora)
    _without_memory(model, fake)
    if training.checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        # A mode is out of force while it handles a call, so that layers which run again need it for themselves.
        again = partial(kernels_of, device_type)
        enable({"use_reentrant": False, "context_fn": lambda: (nullcontext(), again())})
    return model.train()


def layers_are_alike(config: Any) -> bool:
    """Whether the layers of a causal LM differ in nothing but their number: kinds, modules, settings and shapes.

    The whole depth is looked at: some models have experts, or attend through a window, from some layer on.

    Args:
        config: A transformers config; left as it is.
    """
    if len(set(getattr(config, "layer_types", None) or [""])) > 1:
        return False
    whole = type(config)(**config.to_dict())
    with torch.device("meta"), no_init_weights(), without_advice():
        layers = decoder_layers_of(AutoModelForCausalLM.from_config(whole, **implementations(whole)))
    first, *others = map(_built_as, layers)
    return all(other == first for other in others)


def _built_as(layer: nn.Module) -> list[tuple[object, ...]]:
    modules = [
        (name, type(module), {key: value for key, value in vars(module).items() if _is_setting(key, value)})
        for name, module in layer.named_modules()
    ]
    return [*modules, *((name, parameter.shape) for name, parameter in layer.named_parameters())]


def _is_setting(name: str, value: object) -> bool:
    return name != "layer_idx" and isinstance(value, bool | int | float | str | None)


def _depth(config: Any, num_layers: int) -> dict[str, Any]:
    kinds = getattr(config, "layer_types", None)
    return {"num_hidden_layers": num_layers} | ({"layer_types": kinds[:num_layers]} if kinds else {})


def _without_memory(model: nn.Module, fake: FakeTensorMode) -> None:
    """Put a fake tensor in the place of each meta tensor; what is shared stays shared."""
    made: dict[int, Tensor] = {}

    def fake_of(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            with fake:
                empty = torch.empty(tensor.shape, dtype=tensor.dtype)
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
        return made[id(tensor)]

    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = fake_of(tensor)  # type: ignore[assignment]

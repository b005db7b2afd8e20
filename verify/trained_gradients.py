"""Gradients of whatever is trained, by name, as float64 values on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from verify.module_walk import named_modules, named_parameters
from verify.subject import SubjectError


def trained_gradients(loss: Tensor, model: Any, *, done: bool = False) -> dict[str, Tensor]:
    """Run backward and read the gradient of every tensor that is trained.

    Args:
        loss: The loss.
        model: The model.
        done: Whether backward was done already.

    Returns:
        Gradients by name; float64 on the CPU.

    Raises:
        SubjectError: A gradient was there before backward, or none is there although it was done.
    """
    trained = [(name, p) for name, p in named_parameters(named_modules(model)) if p.requires_grad]
    filled = [name for name, parameter in trained if parameter.grad is not None]
    if done and not filled:
        raise SubjectError("backward_done is True, but nothing that is trained has a gradient")
    if filled and not done:
        raise SubjectError(
            f"the gradient of {trained_name(filled[0])} was there before backward: gradients must come from the "
            "loss that is returned, and the runner calls backward (or set backward_done)"
        )
    if not done:
        loss.backward()  # type: ignore[no-untyped-call]
    return {trained_name(name): to_float64(parameter.grad) for name, parameter in trained if parameter.grad is not None}


def looked_up(model: Any) -> str:
    """Name of the embedding where it is looked up and no more: a row whose token is not fed has no gradient then.

    Args:
        model: The model.

    Returns:
        The name as in :func:`trained_gradients`; "" where the embedding is not trained, tied to the head, or unknown.
    """
    weight = getattr(model.get_input_embeddings(), "weight", None)
    if weight is None or not weight.requires_grad:
        return ""
    names = [
        f"{prefix}.{name}"
        for prefix, module in named_modules(model)
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter is weight
    ]
    return trained_name(names[0]) if len(names) == 1 else ""


def trained_name(parameter_name: str) -> str:
    """Name of a trained tensor without PEFT's wrapping.

    ``base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight`` becomes ``model.layers.0.mlp.up_proj.lora_A``.
    Any other, a weight or the head of a reward model, keeps the name that it has in the model.
    """
    name = parameter_name.removeprefix("base_model.model.")
    return name.removesuffix(".weight").removesuffix(".default") if ".lora_" in name else name


def to_float64(tensor: Tensor) -> Tensor:
    """A detached dense float64 copy on the CPU; exact for every narrower dtype."""
    values = tensor.detach()
    if values.layout is not torch.strided:  # the gradient of nn.Embedding(sparse=True)
        values = values.to_dense()
    return values.to("cpu", torch.float64, copy=True)

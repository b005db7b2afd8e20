"""One forward pass over packed rows: what the model call is told, and the log-probs that it gives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from packed_impl.attention import (
    ModelKwargs,
    attention_implementation,
    backend_named,
    gradient_support,
    pretrained_model,
)
from packed_impl.images import image_kwargs
from packed_impl.layout import PackedLayout
from packed_impl.logps import DEFAULT_LOGIT_CHUNK, completion_logps
from packed_impl.windows import LayerWindows


def layout_logps(
    model: nn.Module, layout: PackedLayout, *, backend: str, logit_chunk: int = DEFAULT_LOGIT_CHUNK
) -> list[Tensor]:
    """Log-probs of every completion of a packed layout.

    Args:
        model: The causal LM, wrapped or not.
        layout: The packed rows.
        backend: One of ``attention.BACKENDS``.
        logit_chunk: Number of completion tokens whose logits exist at one time.

    Returns:
        One 1-D tensor per completion, in the standard order, on the model's device.

    Raises:
        ValueError: An unknown backend, gradients asked of a backend that has none on the model's device, gradient
            checkpointing without an outer ``attention_implementation``, or a model that cannot be run packed.
    """
    check_gradients(model, backend)
    with attention_implementation(model, backend) as windows:
        told = packed_kwargs(model, layout, backend, windows)
        logps_C = completion_logps(model, layout, told, logit_chunk=logit_chunk)
    return list(torch.split(logps_C, list(layout.completion_lengths)))


def packed_kwargs(model: nn.Module, layout: PackedLayout, backend: str, windows: LayerWindows) -> ModelKwargs:
    """What is added to the model call: what tells layers who attends to whom, and the features of images.

    Args:
        model: The model, wrapped or not.
        layout: The packed rows.
        backend: One of ``attention.BACKENDS``.
        windows: Those of the model's layers.

    Returns:
        Keyword arguments.

    Raises:
        ValueError: An unknown backend, or images that `images.image_kwargs` refuses.
    """
    outermost = pretrained_model(model)
    told = backend_named(backend).model_kwargs(layout.forests, outermost.device, outermost.dtype, windows)
    return {**told, **image_kwargs(model, layout.input_ids, layout.images)}


def check_gradients(model: nn.Module, backend: str) -> None:
    """Refuse gradients that would be missing or wrong.

    Args:
        model: The model, wrapped or not.
        backend: One of ``attention.BACKENDS``.

    Raises:
        ValueError: Gradients are on, and the backend has none on the model's device, or gradient checkpointing would
            compute them through another attention.
    """
    if not torch.is_grad_enabled() or not any(parameter.requires_grad for parameter in model.parameters()):
        return
    outermost = pretrained_model(model)
    supported, reason = gradient_support(backend, outermost.device.type)
    if not supported:
        raise ValueError(f"backend {backend!r}: {reason}; use torch.no_grad() or another backend")
    switched = outermost.config._attn_implementation != backend_named(backend).implementation
    if not switched or not model.training:
        return
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            "gradient checkpointing computes the forward pass again during the backward pass, when the attention of "
            f"backend {backend!r} would be switched off: enter attention_implementation(model, {backend!r}) around both"
        )

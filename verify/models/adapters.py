"""Which adapter a model computes with, while a context is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """The model without its adapters while the context is open.

    As PEFT's ``disable_adapter``, which before that asks every layer how it is: on a small model for as long as a
    forward pass takes.

    Args:
        model: A model of :func:`verify.models.lora.add_lora`, adapters on.
    """
    model.base_model.disable_adapter_layers()
    try:
        yield
    finally:
        model.base_model.enable_adapter_layers()


@contextmanager
def adapter_active(model: Any, name: str) -> Iterator[None]:
    """The model with another adapter in place of the one that it is trained with, while the context is open.

    PEFT's own switch makes whatever adapter it switches to one that is trained; flags are put back here.

    Args:
        model: A model of :func:`verify.models.lora.add_lora`.
        name: The adapter.
    """
    before = model.active_adapter
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.set_adapter(name)
        yield
    finally:
        model.set_adapter(before)
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)

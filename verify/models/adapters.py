"""Which adapter a model computes with, while a context is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from verify.module_walk import modules_of

_SWITCH = "_disable_adapters"
"""Of PEFT's layers, and of those with trained copies of weights: where it is set, they compute without."""


def has_adapters(model: Any) -> bool:
    """Whether some layer of a model has adapters: PEFT wraps it; else every weight is trained."""
    return any(_has_switch(module) for module in modules_of(model))


def _has_switch(module: Any) -> bool:
    return _SWITCH in vars(module) or hasattr(type(module), _SWITCH)


@contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """The model without its adapters while the context is open.

    As PEFT's ``disable_adapter``, which besides asks every layer how it is and writes ``requires_grad`` of what it
    switches: on a small model that takes half as long as a forward pass. Here only the switches are written, and on
    leaving each is what it was.

    Args:
        model: A model of :func:`verify.models.lora.add_lora`.

    Raises:
        ValueError: No module has the switch, so that the model without its adapters would be the model itself.
    """
    layers = [module for module in modules_of(model) if _has_switch(module)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no layer with adapters: there is none to switch off")
    before = [getattr(layer, _SWITCH) for layer in layers]
    try:
        for layer in layers:
            setattr(layer, _SWITCH, True)
        yield
    finally:
        for layer, switch in zip(layers, before, strict=True):
            setattr(layer, _SWITCH, switch)


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

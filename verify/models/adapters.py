"""Which adapter a model computes with, while a context is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from verify.module_walk import modules_of

_SWITCH = "_disable_adapters"
"""Of PEFT's layers, and of those with trained copies of weights: where it is set, they compute without."""
_ACTIVE_OF_LAYER, _ACTIVE = "_active_adapter", "active_adapter"
"""Which adapters such a layer computes with; which one a model says it computes with."""


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

    PEFT's own switch makes whatever adapter it switches to one that is trained. Flags that are put back afterwards
    are those of the parameters that were there before, which in a sharded model are others than those that took part.
    Here no parameter is touched: layers are told which adapter to compute with.

    Args:
        model: A model of :func:`verify.models.lora.add_lora`.
        name: The adapter.

    Raises:
        ValueError: The model has no adapter of that name.
    """
    if name not in model.peft_config:
        raise ValueError(f"{type(model).__name__} has no adapter {name!r}: it has {', '.join(model.peft_config)}")
    layers = [module for module in modules_of(model) if _has_switch(module)]
    told = [*((layer, _ACTIVE_OF_LAYER, [name]) for layer in layers), *((m, _ACTIVE, name) for m in _wrappers(model))]
    before = [getattr(each, attribute) for each, attribute, _ in told]
    try:
        for each, attribute, active in told:
            setattr(each, attribute, active)
        yield
    finally:
        for (each, attribute, _), active in zip(told, before, strict=True):
            setattr(each, attribute, active)


def _wrappers(model: Any) -> list[Any]:
    """PEFT's model and its tuner, which say which adapter is active."""
    return [each for each in (model, model.base_model) if _ACTIVE in vars(each)]

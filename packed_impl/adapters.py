"""Which adapters of a PEFT model take part, for as long as a context is open.

PEFT's own switches set ``requires_grad`` of what they switch, and on the way back set it to True, whatever it was. A
graph over these parameters would not survive that, nor would a parameter that somebody froze. Here no parameter is
touched: layers are told which adapters to compute with, and afterwards are told again what they were told before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TypeAlias

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import nn

from packed_impl.modules import all_modules

AdapterLayer: TypeAlias = BaseTunerLayer | AuxiliaryTrainingWrapper
"""A layer with adapters beside its own weights, or with trained copies of these (PEFT's ``modules_to_save``)."""


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The model without its adapters, and without gradients, while the context is open.

    Args:
        model: The model, wrapped or not.

    Yields:
        Nothing.

    Raises:
        ValueError: No layer has an adapter that is on, so that the model without it would be the model itself.
    """
    layers = [layer for layer in _adapter_layers(model) if not layer.disable_adapters]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no adapter that is on: the frozen policy is the model with its adapters off"
        )
    with _told(layers, "_disable_adapters", [True] * len(layers)), torch.no_grad():
        yield


@contextmanager
def frozen_adapter(model: nn.Module, name: str) -> Iterator[None]:
    """The model with another adapter in place of the active one, and without gradients, while the context is open.

    Layers that do not have that adapter compute with their own weights.

    Args:
        model: The model, wrapped or not.
        name: The adapter.

    Yields:
        Nothing.

    Raises:
        ValueError: No adapter of that name, one that is active, trained or switched off, or weights that another one
            is merged into.
    """
    layers = _adapter_layers(model)
    holders = _check_frozen(model, layers, name)
    active = [[name] if layer in holders else [] for layer in layers]
    with _told(layers, "_active_adapter", active), torch.no_grad():
        yield


def _adapter_layers(model: nn.Module) -> list[AdapterLayer]:
    return [module for module in all_modules(model) if isinstance(module, AdapterLayer)]


def _check_frozen(model: nn.Module, layers: Sequence[AdapterLayer], name: str) -> set[AdapterLayer]:
    """The layers that have an adapter, which has to be one that stays as it is."""
    where = f"frozen adapter {name!r}"
    names_of = {layer: layer._get_available_adapters() for layer in layers}
    holders = {layer for layer, names in names_of.items() if name in names}
    if not holders:
        known = ", ".join(sorted(set().union(*names_of.values()))) or "none"
        raise ValueError(f"{where}: {type(model).__name__} has no such adapter; its adapters: {known}")
    if any(name in layer.active_adapters for layer in holders):
        raise ValueError(f"{where} is active, so it is the policy itself: name another adapter")
    if any(parameter.requires_grad for layer in holders for parameter in _parameters(layer, name)):
        raise ValueError(f"{where} has parameters that require gradients, so it is not frozen: set requires_grad False")
    if any(layer.disable_adapters for layer in holders):
        raise ValueError(f"{where} is in layers whose adapters are switched off: switch them on")
    if any(layer.merged_adapters for layer in layers):
        raise ValueError(f"{where}: an adapter is merged into the weights; unmerge it")
    return holders


def _parameters(layer: AdapterLayer, name: str) -> Iterator[nn.Parameter]:
    """The parameters that one adapter has in a layer."""
    for attribute in (*layer.adapter_layer_names, *layer.other_param_names):
        of_adapters = attrgetter(attribute)(layer)
        if isinstance(of_adapters, nn.ModuleDict) and name in of_adapters:
            yield from of_adapters[name].parameters()
        if isinstance(of_adapters, nn.ParameterDict) and name in of_adapters:
            yield of_adapters[name]


@contextmanager
def _told(layers: Sequence[AdapterLayer], attribute: str, values: Sequence[object]) -> Iterator[None]:
    """Set an attribute of some layers; on leaving, each has the value that it had."""
    before = [getattr(layer, attribute) for layer in layers]
    try:
        for layer, value in zip(layers, values, strict=True):
            setattr(layer, attribute, value)
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            setattr(layer, attribute, value)

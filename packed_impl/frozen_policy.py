"""The frozen policy of DPO: the model with its adapters off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import nn


@contextmanager
def frozen_policy(model: nn.Module) -> Iterator[None]:
    """The model without its adapters, and without gradients, while the context is open.

    As PEFT's ``disable_adapter``, which before that asks every layer for a full account of itself: on a small model for
    as long as a forward pass takes. Layers whose adapters were off stay off. Switching an adapter on again resets
    ``requires_grad`` of its parameters, which a graph over them would not survive: run the frozen policy first.

    Args:
        model: The model, wrapped or not.

    Yields:
        Nothing.

    Raises:
        ValueError: No layer has an adapter that is on, so that the frozen policy would be the policy.
    """
    layers = [module for module in model.modules() if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))]
    switched_on = [layer for layer in layers if not layer.disable_adapters]
    if not switched_on:
        raise ValueError(
            f"{type(model).__name__} has no adapter that is on: the frozen policy is the model with its adapters off"
        )
    try:
        for layer in switched_on:
            layer.enable_adapters(False)
        with torch.no_grad():
            yield
    finally:
        for layer in switched_on:
            layer.enable_adapters(True)

"""Gradients by name: ``<module>.lora_A`` and ``<module>.lora_B`` of every adapter, and what else is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from reference_impl.lora import Lora

Gradients = Mapping[str, Tensor]


def leaf(tensor: Tensor, *, requires_grad: bool) -> Tensor:
    """A float64 copy that a gradient can be taken with respect to."""
    return tensor.detach().to(torch.float64, copy=True).requires_grad_(requires_grad)


def leaves(lora: Lora, *, requires_grad: bool) -> Lora:
    """Float64 copies of the factors that a gradient can be taken with respect to."""
    return {
        module: replace(
            factors,
            A=leaf(factors.A, requires_grad=requires_grad),
            B=leaf(factors.B, requires_grad=requires_grad),
        )
        for module, factors in lora.items()
    }


def named_factors(lora: Lora) -> dict[str, Tensor]:
    """The factors by the names of their gradients."""
    return {f"{module}.lora_{side}": getattr(lora[module], side) for module in lora for side in "AB"}


def gradients_of(loss: Tensor, parameters: Mapping[str, Tensor], *, some_unused: bool = False) -> dict[str, Tensor]:
    """The gradient of a loss by the names of the parameters.

    Args:
        loss: A scalar.
        parameters: Leaves by name.
        some_unused: The loss need not depend on all of them, and has gradient 0 in those; else that is an error.

    Returns:
        Gradients shaped like the parameters.
    """
    if some_unused and not loss.requires_grad:
        return {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    inputs = list(parameters.values())
    found = torch.autograd.grad(loss, inputs, allow_unused=some_unused, materialize_grads=some_unused)
    return dict(zip(parameters, found, strict=True))


def added(first: Gradients | None, second: Gradients | None) -> Gradients | None:
    """The gradient of a sum of two losses in the same parameters; None where there is none of either."""
    if first is None or second is None:
        return None
    return {name: first[name] + second[name] for name in first}

"""What is trained, and its gradients by name.

With adapters they are ``<module>.lora_A`` and ``<module>.lora_B``, with every weight trained the names of the weights:
a head that is tied to the embedding is the same tensor, so that its gradient is the sum of both uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from reference_impl.lora import Lora
from reference_impl.parameters import Weights

Gradients = Mapping[str, Tensor]
Train = Literal["lora", "all"]
"""What is trained: the factors of the adapters, or every weight of a model without adapters."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The tensors that a step computes with, and those of them that it differentiates with respect to.

    Args:
        weights: Weights by Hugging Face name.
        lora: Adapters by module name; empty where every weight is trained.
        trained: The trained tensors, float64, by the names of their gradients.
    """

    weights: Weights
    lora: Lora
    trained: Mapping[str, Tensor]


def policy_of(weights: Weights, lora: Lora, train: Train, *, requires_grad: bool) -> Policy:
    """The tensors of a step, those that are trained as float64 leaves.

    Args:
        weights: Weights by name, of any floating dtype.
        lora: Adapters by module name.
        train: What is trained.
        requires_grad: Whether the leaves require grad.

    Returns:
        The policy; nothing else of it requires grad.

    Raises:
        ValueError: An unknown name, or adapters on a model whose every weight is trained.
    """
    if train not in get_args(Train):
        raise ValueError(f"train is {train!r}: expected one of {', '.join(get_args(Train))}")
    if train == "lora":
        factors = leaves(lora, requires_grad=requires_grad)
        frozen = {name: weight.detach() for name, weight in weights.items()}
        return Policy(frozen, factors, named_factors(factors))
    if lora:
        raise ValueError(f"every weight trained, and adapters on {next(iter(lora))}: leave the adapters out")
    every = {name: leaf(weight, requires_grad=requires_grad) for name, weight in weights.items()}
    return Policy(every, {}, every)


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

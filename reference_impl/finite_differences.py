"""The slope of the oracle's loss measured from its values, to confirm gradients from differentiation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from reference_impl.batch_objective import ObjectiveName
from reference_impl.config import DecoderConfig
from reference_impl.gradients import Train, named_factors
from reference_impl.groups import Group
from reference_impl.lora import Lora
from reference_impl.parameters import Weights
from reference_impl.ref_policy import RefPolicy
from reference_impl.step import oracle_step


def random_direction(lora: Lora, generator: Generator) -> dict[str, Tensor]:
    """Draw a direction of unit length in the space of all factors together.

    Args:
        lora: The factors to move, at least one module.
        generator: Source of the normal draws, on the CPU.

    Returns:
        Float64 tensors named and shaped like the gradients of :func:`reference_impl.step.oracle_step`.

    Raises:
        ValueError: No factors.
    """
    if not lora:
        raise ValueError("no LoRA factors: there is nothing to move")
    return random_direction_of(named_factors(lora), generator)


def random_direction_of(tensors: Mapping[str, Tensor], generator: Generator) -> dict[str, Tensor]:
    """The same in the space of any tensors together, such as all weights of a model."""
    drawn: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        drawn[name] = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
    length = torch.stack([noise.square().sum() for noise in drawn.values()]).sum().sqrt()
    return {name: noise / length for name, noise in drawn.items()}


def moved(lora: Lora, direction: Mapping[str, Tensor], distance: float) -> Lora:
    """The factors, in float64, after a step of ``distance`` along ``direction``."""
    return {
        module: replace(
            factors,
            A=factors.A.detach().to(torch.float64) + distance * direction[f"{module}.lora_A"],
            B=factors.B.detach().to(torch.float64) + distance * direction[f"{module}.lora_B"],
        )
        for module, factors in lora.items()
    }


def moved_weights(weights: Weights, direction: Mapping[str, Tensor], distance: float) -> dict[str, Tensor]:
    """The weights, in float64, after a step of ``distance`` along ``direction``."""
    return {
        name: weight.detach().to(torch.float64) + distance * direction[name] if name in direction else weight
        for name, weight in weights.items()
    }


def slope_from_gradients(gradients: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> float:
    """``<gradient, direction>``: what the gradient says the loss does along the direction.

    Raises:
        ValueError: The two do not name the same factors.
    """
    if gradients.keys() != direction.keys():
        raise ValueError(f"gradient and direction differ in factors {sorted(gradients.keys() ^ direction.keys())}")
    return sum(float((gradients[name] * direction[name]).sum()) for name in direction)


def slope_from_losses(
    groups: Sequence[Group],
    weights: Weights,
    config: DecoderConfig,
    lora: Lora,
    direction: Mapping[str, Tensor],
    *,
    train: Train = "lora",
    objective: ObjectiveName = "sigmoid",
    beta: float | None = None,
    label_smoothing: float | None = None,
    nll_weight: float | None = None,
    ref_policy: RefPolicy | None = None,
    distance: float = 1e-3,
) -> float:
    """Central difference of fourth order, ``[8 (L(h) - L(-h)) - (L(2h) - L(-2h))] / 12h``, error O(h^4).

    Args:
        groups: The groups.
        weights: Weights by name.
        config: The decoder.
        lora: The adapters at which to measure; empty where every weight is trained.
        direction: From :func:`random_direction`, or where every weight is trained from :func:`random_direction_of`.
        train: As in :func:`reference_impl.step.oracle_step`.
        objective: As in :func:`reference_impl.step.oracle_step`.
        beta: As in :func:`reference_impl.step.oracle_step`.
        label_smoothing: As in :func:`reference_impl.step.oracle_step`.
        nll_weight: As in :func:`reference_impl.step.oracle_step`.
        ref_policy: As in :func:`reference_impl.step.oracle_step`.
        distance: h, the step along the direction.

    Returns:
        The slope of the loss along the direction.
    """

    def loss(steps: int) -> float:
        far = steps * distance
        step = oracle_step(
            groups,
            moved_weights(weights, direction, far) if train == "all" else weights,
            config,
            lora if train == "all" else moved(lora, direction, far),
            train=train,
            objective=objective,
            beta=beta,
            label_smoothing=label_smoothing,
            nll_weight=nll_weight,
            ref_policy=ref_policy,
            gradients=False,
        )
        return float(step.loss)

    return (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * distance)

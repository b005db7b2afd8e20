"""LoRA adapters and linear maps, in float64, over weights that are kept in the dtype they arrived in.

Legend: T tokens, I input features, O output features, R rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl.config import DecoderConfig
from reference_impl.frozen import product
from reference_impl.parameters import EMBEDDING, HEAD, Weights, linear_shapes


@dataclass(frozen=True, slots=True)
class LoraFactors:
    """A low-rank update ``scaling * B A`` of one linear module (Hu et al. 2021, section 4.1).

    Args:
        A: The factor next to the input, shape [R, I].
        B: The factor next to the output, shape [O, R].
        scaling: ``alpha / R``, or ``alpha / sqrt(R)`` where rank stabilisation is on.

    Raises:
        ValueError: The factors are not matrices of one rank.
    """

    A: Tensor
    B: Tensor
    scaling: float

    def __post_init__(self) -> None:
        if self.A.dim() != 2 or self.B.dim() != 2 or self.A.shape[0] != self.B.shape[1]:
            raise ValueError(
                f"LoRA factors of shape A {tuple(self.A.shape)} and B {tuple(self.B.shape)}: "
                "expected [rank, in] and [out, rank]"
            )


Lora = Mapping[str, LoraFactors]


def check_lora(lora: Lora, config: DecoderConfig) -> None:
    """Refuse factors for a module that does not exist or that has other sizes.

    Args:
        lora: Factors by module name, such as ``model.layers.0.self_attn.q_proj``.
        config: The decoder that they should belong to.

    Raises:
        ValueError: An unknown module name, the weights of experts, or factors that do not fit the module.
    """
    shapes = linear_shapes(config)
    if of_experts := sorted(name for name in lora.keys() - shapes.keys() if ".mlp.experts" in name):
        raise ValueError(
            f"LoRA on {', '.join(of_experts)}: the oracle computes no adapters on the weights of experts; adapt the "
            "attention projections"
        )
    if unknown := sorted(lora.keys() - shapes.keys()):
        raise ValueError(
            f"LoRA on {', '.join(unknown)}: no linear module of this decoder; names look like {next(iter(shapes))}"
        )
    for module, factors in lora.items():
        adapted = (factors.B.shape[0], factors.A.shape[1])
        if adapted != shapes[module]:
            raise ValueError(f"LoRA on {module} maps [out, in] = {adapted}: the module has {shapes[module]}")


def linear(x_TI: Tensor, module: str, weights: Weights, lora: Lora) -> Tensor:
    """Apply one linear module with its adapter: ``W x + b + scaling * B (A x)``.

    Args:
        x_TI: Input, float64, [T, I].
        module: Name of the module; a head without a weight of its own is tied to the embedding.
        weights: The weights by name, of any floating dtype.
        lora: The adapters by module name; a module without one is left as it is.

    Returns:
        Output, float64, [T, O].
    """
    weight = weights.get(f"{module}.weight")
    if weight is None and module == HEAD:
        weight = weights[f"{EMBEDDING}.weight"]
    if weight is None:
        raise ValueError(f"no weight called {module}.weight")
    y_TO = product(x_TI, weight)
    bias = weights.get(f"{module}.bias")
    if bias is not None:
        y_TO = y_TO + bias.to(torch.float64)
    factors = lora.get(module)
    if factors is not None:
        A_RI, B_OR = factors.A.to(torch.float64), factors.B.to(torch.float64)
        y_TO = y_TO + factors.scaling * ((x_TI @ A_RI.T) @ B_OR.T)
    return y_TO

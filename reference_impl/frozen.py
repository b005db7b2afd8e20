"""Products with weights, in float64; those that are not trained are kept in the dtype they arrived in.

Legend: T tokens, I input features, O output features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _FrozenProduct(torch.autograd.Function):
    """``x W^T`` without a wide copy in the graph.

    Plain autograd would keep the float64 copy of every weight until the backward pass, for each sequence again,
    4.4 GiB for a 0.6B model. This keeps the weight as it came and casts it twice.
    """

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.save_for_backward(weight_OI)
        return x_TI @ weight_OI.to(torch.float64).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad_TO,) = grads
        (weight_OI,) = ctx.saved_tensors
        return grad_TO @ weight_OI.to(torch.float64), None


def product(x_TI: Tensor, weight_OI: Tensor) -> Tensor:
    """``x W^T`` in float64, differentiable in x, and in a weight that requires grad.

    Args:
        x_TI: Input, float64, [T, I].
        weight_OI: The weight, of any floating dtype, [O, I].

    Returns:
        Output, float64, [T, O].
    """
    if weight_OI.requires_grad:
        return x_TI @ weight_OI.to(torch.float64).T
    output: Tensor = _FrozenProduct.apply(x_TI, weight_OI)  # type: ignore[no-untyped-call]
    return output

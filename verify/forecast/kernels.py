"""The attention kernels of a CUDA device, for fake tensors on a machine without one.

On a CPU ``scaled_dot_product_attention`` chooses the kernel that runs there, for fake tensors as for real ones, and
nothing here takes part. For a CUDA device the choice of torch 2.13 in half precision is written down:

- causal, aligned to the last query and the last key, or without a mask: the flash kernel;
- with a mask: the memory-efficient kernel. A boolean mask becomes one of the dtype of the queries, whose rows are
  padded to a multiple of 16, and which autograd keeps, layer by layer, for the backward pass;
- FlexAttention: as the flash kernel (its output and one float32 statistic a query are kept), over the cells of the
  128 x 128 blocks that its block table lists.

So shapes, dtypes and lifetimes of what a kernel returns are torch's own; memory that it uses inside is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface

from verify.forecast.step_trace import StepTrace

_MASK_ROWS = 16
"""Rows of a mask are padded to a multiple of so many elements."""

_FLEX = "packed-flex"


class CudaKernels(TorchFunctionMode):
    """``scaled_dot_product_attention`` as on a CUDA device, in half precision."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            return _attend(*args, **kwargs)
        return func(*args, **kwargs)


def kernels_of(device_type: str) -> AbstractContextManager[object]:
    """The context in which attention kernels are those of "cuda", or those of "cpu", which run here anyway."""
    return CudaKernels() if device_type == "cuda" else nullcontext()


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if attn_mask is None or isinstance(attn_mask, CausalBias):
        causal = is_causal or attn_mask is not None
        return _flash(query, key, value, causal=causal, scale=scale)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    bias = _additive(attn_mask, query)
    output: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
    )[0]
    return output


def _flash(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float | None) -> Tensor:
    output: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)[0]
    return output


def _additive(mask: Tensor, query: Tensor) -> Tensor:
    """The mask as the memory-efficient kernel takes it; [B, N, T, T], heads expanded."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, query.new_zeros(()), query.new_full((), -torch.inf))
    missing = -mask.shape[-1] % _MASK_ROWS
    if missing:
        mask = pad(mask, (0, missing))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], -1, -1)


@contextmanager
def flex_modelled(trace: StepTrace, num_block_cells: int) -> Iterator[None]:
    """FlexAttention computed by the stand-in while the context is open, which lies within that of the backend.

    Args:
        trace: What follows the step; it is told how many cells are computed.
        num_block_cells: Cells of listed blocks for one head, all rows together.
    """

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: object, *, scaling: float, **_: object
    ) -> tuple[Tensor, None]:
        with trace.attending(num_block_cells * query.shape[1]):
            output = _flash(query, key, value, causal=False, scale=scaling)
        return output.transpose(1, 2).contiguous(), None

    functions: dict[str, Callable[..., Any]] = AttentionInterface._global_mapping
    before = functions[_FLEX]
    AttentionInterface.register(_FLEX, attend)
    try:
        yield
    finally:
        AttentionInterface.register(_FLEX, before)

"""The attention of a packed backend by itself, without a model around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from packed_impl.attention import attention_function, backend_named, gradient_support
from packed_impl.forest import Forest
from verify.subject import Support

KERNEL_BACKENDS = ("dense-sdpa", "flex", "split")
"""Backends with a kernel of their own; dense-eager is plain products of matrices."""


def backend_attention(
    backend: str, lengths: Sequence[int], query: Tensor, key: Tensor, value: Tensor, *, scaling: float
) -> Tensor:
    """Attention of one packed row: a prompt and its responses, as a layer of a model calls it.

    Args:
        backend: One of ``KERNEL_BACKENDS``.
        lengths: Of the prompt, then of each response.
        query: [1, query heads, slots, head_dim].
        key: [1, key heads, slots, head_dim].
        value: As key.
        scaling: Factor on the scores.

    Returns:
        Mixed values, as query.
    """
    forest = Forest.of(lengths, [None, *([0] * (len(lengths) - 1))])
    told = backend_named(backend).model_kwargs((forest,), query.device, query.dtype)
    kwargs = {"attention_mask": None, **told}
    output, _ = attention_function(backend)(
        _Layer(query.shape[1] // key.shape[1]), query, key, value, scaling=scaling, **kwargs
    )
    mixed: Tensor = output.transpose(1, 2)
    return mixed


def backward_support(backend: str, device: str) -> Support:
    """Whether a backend has a backward pass on a device, and if not, why."""
    supported, reason = gradient_support(backend, torch.device(device).type)
    return Support(supported, reason)


class _Layer(nn.Module):
    """What an attention function asks a layer for."""

    is_causal = True

    def __init__(self, num_key_value_groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = num_key_value_groups

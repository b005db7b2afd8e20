"""Attention through a 4-D mask: the forest's rule as a matrix, for the kernels that transformers ships.

Shape letters: B rows, T slots of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from packed_impl.forest import Forest, attention_rule


def boolean_mask(forests: Sequence[Forest], device: torch.device, window: int | None = None) -> Tensor:
    """The mask in the form that SDPA takes: True where a slot may attend.

    Args:
        forests: The rows, all of T slots.
        device: Where the mask is needed.
        window: Sliding window of the layers, None for none.

    Returns:
        bool, [B, 1, T query, T key].
    """
    return torch.stack([attention_rule(forest, window) for forest in forests])[:, None].to(device)


def additive_mask(
    forests: Sequence[Forest], device: torch.device, dtype: torch.dtype, window: int | None = None
) -> Tensor:
    """The mask in the form that eager attention takes: 0 where a slot may attend, else the lowest finite value.

    Args:
        forests: The rows, all of T slots.
        device: Where the mask is needed.
        dtype: Floating dtype of the attention scores.
        window: Sliding window of the layers, None for none.

    Returns:
        ``dtype``, [B, 1, T query, T key].
    """
    allowed = boolean_mask(forests, device, window)
    lowest = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=device)
    return torch.where(allowed, torch.zeros_like(lowest), lowest)

"""Softmax attention over one unpadded sequence: over all tokens so far, or over the last few of them.

Legend: T tokens, N query heads, K key and value heads, G = N / K query heads that share a key head, H head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Attention = Callable[[Tensor, Tensor, Tensor, int | None], Tensor]
"""From rotated queries [N, T, H], rotated keys [K, T, H], values [K, T, H] and the layer's window to mixed values
[N, T, H]."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The layers of a decoder in which a query sees only the last few tokens.

    Args:
        size: How many tokens a query sees in those layers, itself included.
        layers: Indices of the layers; in the others a query sees all tokens so far.

    Raises:
        ValueError: A size that is not positive, or no layers.
    """

    size: int
    layers: frozenset[int]

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"sliding_window is {self.size!r}: it must be positive")
        if not self.layers:
            raise ValueError(f"a sliding window of {self.size} tokens in no layer: give None for full attention")


def causal_attention(q_NTH: Tensor, k_KTH: Tensor, v_KTH: Tensor, window: int | None = None) -> Tensor:
    """``out_t = sum_s softmax_s(q_t . k_s / sqrt(H)) v_s`` over the places s with ``t - window < s <= t``.

    Query head n reads key head n // G. With a window of 2 the third token of three sees the second and itself.

    Sources: Vaswani et al. 2017, equation 1; Ainslie et al. 2023 for the shared key heads; Beltagy et al. 2020 and
    Jiang et al. 2023 for the window.

    Args:
        q_NTH: Rotated queries.
        k_KTH: Rotated keys.
        v_KTH: Values.
        window: How many tokens a query sees, itself included; None for all tokens so far.

    Returns:
        Mixed values, [N, T, H].
    """
    place_T = torch.arange(q_NTH.shape[1], device=q_NTH.device)
    behind_TT = place_T[:, None] - place_T[None, :]
    excluded_TT = behind_TT < 0
    if window is not None:
        excluded_TT = excluded_TT | (behind_TT >= window)
    return attention_without(excluded_TT, q_NTH, k_KTH, v_KTH)


def attention_without(excluded_TT: Tensor, q_NTH: Tensor, k_KTH: Tensor, v_KTH: Tensor) -> Tensor:
    """Softmax attention in which query t leaves out every key s with ``excluded[t, s]``."""
    num_heads, num_tokens, head_dim = q_NTH.shape
    num_kv_heads = k_KTH.shape[0]
    # The G query heads of a key head are stacked along the rows: one product per key head, no copies of keys.
    stacked = q_NTH.reshape(num_kv_heads, -1, head_dim) / math.sqrt(head_dim)
    scores_KGTT = (stacked @ k_KTH.mT).view(num_kv_heads, -1, num_tokens, num_tokens)
    weights_KGTT = scores_KGTT.masked_fill(excluded_TT, -math.inf).softmax(dim=-1)
    return (weights_KGTT.view(num_kv_heads, -1, num_tokens) @ v_KTH).view(num_heads, num_tokens, head_dim)

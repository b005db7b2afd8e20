"""Attention as the oracle computes it: over one unpadded sequence, in whatever dtype it is given."""

from __future__ import annotations

from torch import Tensor

from reference_impl.attention import causal_attention


def sequence_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of one sequence: [1, query heads, tokens, head_dim], keys and values with fewer heads."""
    return causal_attention(query[0], key[0], value[0])[None]

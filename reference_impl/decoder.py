"""A Llama-like decoder in float64 for one unpadded sequence, written from the definition of the architecture.

Every step, the norms, the rotary angles and the softmax included, is float64. There is no padding, no batch,
no cache and no mask argument: a sequence is its own causal sum.

Legend: T tokens, P places in the sequence, D model width, V vocabulary, N query heads, K key and value heads,
G = N / K query heads that share a key head, H head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from reference_impl.config import DecoderConfig
from reference_impl.lora import Lora, check_lora, linear
from reference_impl.parameters import EMBEDDING, FINAL_NORM, HEAD, Weights, check_weights, layer_name

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From rotated queries [N, T, H], rotated keys [K, T, H] and values [K, T, H] to mixed values [N, T, H]."""


def hidden_states(
    ids: Sequence[int],
    weights: Weights,
    config: DecoderConfig,
    lora: Lora | None = None,
    *,
    positions: Tensor | None = None,
    attend: Attention | None = None,
) -> Tensor:
    """Run one sequence through the decoder, up to and including the final norm.

    Args:
        ids: Token ids of the sequence, T of them.
        weights: Frozen weights by Hugging Face name, of any floating dtype.
        config: The decoder.
        lora: Adapters by module name; None for the frozen model.
        positions: Rotary position of each token, [T]; 0 .. T-1 if None.
        attend: The attention step; :func:`causal_attention` if None.

    Returns:
        Hidden states, float64, [T, D]; differentiable in the adapters' factors.

    Raises:
        ValueError: No tokens, a token outside the vocabulary, positions of another length, or weights or
            adapters that do not belong to this decoder.
    """
    lora = {} if lora is None else lora
    check_weights(weights, config)
    check_lora(lora, config)
    embedding_VD = weights[f"{EMBEDDING}.weight"].detach()
    ids_T = _checked_ids(ids, config.vocab_size).to(embedding_VD.device)
    positions_T = torch.arange(len(ids), device=ids_T.device) if positions is None else positions.to(ids_T.device)
    if positions_T.shape != ids_T.shape:
        raise ValueError(f"positions of shape {tuple(positions_T.shape)} for {len(ids)} tokens: one each is needed")

    rotation = rotary_angles(positions_T, config)
    attend = causal_attention if attend is None else attend
    x_TD = embedding_VD[ids_T].to(torch.float64)
    for layer in map(layer_name, range(config.num_layers)):
        normed_TD = rms_norm(x_TD, weights[f"{layer}.input_layernorm.weight"], config.rms_norm_eps)
        x_TD = x_TD + _attention_block(normed_TD, f"{layer}.self_attn", weights, config, lora, rotation, attend)
        normed_TD = rms_norm(x_TD, weights[f"{layer}.post_attention_layernorm.weight"], config.rms_norm_eps)
        x_TD = x_TD + _mlp_block(normed_TD, f"{layer}.mlp", weights, lora)
    return rms_norm(x_TD, weights[f"{FINAL_NORM}.weight"], config.rms_norm_eps)


def logits_at(hidden_TD: Tensor, places: Sequence[int], weights: Weights, lora: Lora | None = None) -> Tensor:
    """Apply the head to chosen places only, so that no row is paid for that nobody asked about.

    Args:
        hidden_TD: Output of :func:`hidden_states`.
        places: The P places in the sequence to look at.
        weights: Frozen weights by name.
        lora: Adapters by module name; None for the frozen model.

    Returns:
        Logits, float64, [P, V].
    """
    rows_PD = hidden_TD[torch.tensor(list(places), device=hidden_TD.device)]
    return linear(rows_PD, HEAD, weights, {} if lora is None else lora)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension (Zhang, Sennrich 2019, equation 4)."""
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight.detach().to(torch.float64)


def rotary_angles(positions_T: Tensor, config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine of ``position * theta^(-2i/H)`` for i in 0 .. H/2-1 (Su et al. 2021, section 3.2.2).

    Returns:
        Two float64 tensors, [T, H/2].
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64, device=positions_T.device) / config.head_dim
    angles = positions_T.to(torch.float64)[:, None] * config.rope_theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x_XTH: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the plane of coordinates (i, i + H/2) by its angle; Hugging Face checkpoints pair them so."""
    cos, sin = rotation
    first, second = x_XTH.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def causal_attention(q_NTH: Tensor, k_KTH: Tensor, v_KTH: Tensor) -> Tensor:
    """``out_t = sum_{s <= t} softmax_s(q_t . k_s / sqrt(H)) v_s``, query head n reading key head n // G.

    Sources: Vaswani et al. 2017, equation 1; Ainslie et al. 2023 for the shared key heads.
    """
    num_tokens = q_NTH.shape[1]
    later_TT = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=q_NTH.device).triu(1)
    return attention_without(later_TT, q_NTH, k_KTH, v_KTH)


def attention_without(excluded_TT: Tensor, q_NTH: Tensor, k_KTH: Tensor, v_KTH: Tensor) -> Tensor:
    """Softmax attention in which query t leaves out every key s with ``excluded[t, s]``."""
    num_heads, num_tokens, head_dim = q_NTH.shape
    num_kv_heads = k_KTH.shape[0]
    # The G query heads of a key head are stacked along the rows: one product per key head, no copies of keys.
    stacked = q_NTH.reshape(num_kv_heads, -1, head_dim) / math.sqrt(head_dim)
    scores_KGTT = (stacked @ k_KTH.mT).view(num_kv_heads, -1, num_tokens, num_tokens)
    weights_KGTT = scores_KGTT.masked_fill(excluded_TT, -math.inf).softmax(dim=-1)
    return (weights_KGTT.view(num_kv_heads, -1, num_tokens) @ v_KTH).view(num_heads, num_tokens, head_dim)


def _attention_block(
    x_TD: Tensor,
    name: str,
    weights: Weights,
    config: DecoderConfig,
    lora: Lora,
    rotation: tuple[Tensor, Tensor],
    attend: Attention,
) -> Tensor:
    num_tokens = x_TD.shape[0]
    q_TNH = linear(x_TD, f"{name}.q_proj", weights, lora).view(num_tokens, config.num_heads, config.head_dim)
    k_TKH = linear(x_TD, f"{name}.k_proj", weights, lora).view(num_tokens, config.num_kv_heads, config.head_dim)
    v_TKH = linear(x_TD, f"{name}.v_proj", weights, lora).view(num_tokens, config.num_kv_heads, config.head_dim)
    if config.qk_norm:
        q_TNH = rms_norm(q_TNH, weights[f"{name}.q_norm.weight"], config.rms_norm_eps)
        k_TKH = rms_norm(k_TKH, weights[f"{name}.k_norm.weight"], config.rms_norm_eps)
    q_NTH, k_KTH = rotate(q_TNH.transpose(0, 1), rotation), rotate(k_TKH.transpose(0, 1), rotation)
    mixed_NTH = attend(q_NTH, k_KTH, v_TKH.transpose(0, 1))
    return linear(mixed_NTH.transpose(0, 1).reshape(num_tokens, -1), f"{name}.o_proj", weights, lora)


def _mlp_block(x_TD: Tensor, name: str, weights: Weights, lora: Lora) -> Tensor:
    """``down(silu(gate(x)) * up(x))`` (Shazeer 2020, SwiGLU)."""
    gated = silu(linear(x_TD, f"{name}.gate_proj", weights, lora)) * linear(x_TD, f"{name}.up_proj", weights, lora)
    return linear(gated, f"{name}.down_proj", weights, lora)


def _checked_ids(ids: Sequence[int], vocab_size: int) -> Tensor:
    if not ids:
        raise ValueError("no tokens: a sequence needs at least one")
    for place, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"token id {token_id} at place {place}: outside the vocabulary of {vocab_size} tokens")
    return torch.tensor(ids, dtype=torch.int64)

"""A Llama-like decoder in float64 for one unpadded sequence, written from the definition of the architecture.

Every step, the norms, the rotary angles and the softmax included, is float64. There is no padding, no batch,
no cache and no mask argument: a sequence is its own causal sum.

Legend: T tokens, P places in the sequence, D model width, V vocabulary, N query heads, K key and value heads, H head
width, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from reference_impl.attention import Attention, causal_attention
from reference_impl.config import DecoderConfig
from reference_impl.experts import Experts, experts_mlp
from reference_impl.frozen import product
from reference_impl.lora import Lora, check_lora, linear
from reference_impl.parameters import EMBEDDING, FINAL_NORM, HEAD, Weights, check_weights, layer_name
from reference_impl.rope import rotary_angles, rotary_frequencies, rotate


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a decoder makes of one sequence, float64.

    Differentiable in the adapters' factors, and in weights that require grad.

    Args:
        hidden_TD: Hidden states after the final norm.
        router_scores: What the router of each layer with experts makes of each token, before the softmax: one [T, E]
            per such layer in their order; empty for a decoder without experts.
    """

    hidden_TD: Tensor
    router_scores: tuple[Tensor, ...]


def hidden_states(
    ids: Sequence[int],
    weights: Weights,
    config: DecoderConfig,
    lora: Lora | None = None,
    *,
    positions: Tensor | None = None,
    attend: Attention = causal_attention,
) -> Tensor:
    """The hidden states of :func:`decode`, float64, [T, D]; differentiable in the adapters' factors."""
    return decode(ids, weights, config, lora, positions=positions, attend=attend).hidden_TD


def decode(
    ids: Sequence[int],
    weights: Weights,
    config: DecoderConfig,
    lora: Lora | None = None,
    *,
    positions: Tensor | None = None,
    attend: Attention = causal_attention,
) -> Decoded:
    """Run one sequence through the decoder, up to and including the final norm.

    Args:
        ids: Token ids of the sequence, T of them.
        weights: Weights by Hugging Face name, of any floating dtype.
        config: The decoder.
        lora: Adapters by module name; None for a model without.
        positions: Rotary position of each token, [T]; 0 .. T-1 if None.
        attend: The attention step, called with the window of each layer.

    Returns:
        Hidden states and router scores.

    Raises:
        ValueError: No tokens, a token outside the vocabulary, positions of another length, or weights or
            adapters that do not belong to this decoder.
    """
    lora = {} if lora is None else lora
    check_lora(lora, config)
    check_weights(weights, config)
    embedding_VD = weights[f"{EMBEDDING}.weight"]
    ids_T = _checked_ids(ids, config.vocab_size).to(embedding_VD.device)
    positions_T = torch.arange(len(ids), device=ids_T.device) if positions is None else positions.to(ids_T.device)
    if positions_T.shape != ids_T.shape:
        raise ValueError(f"positions of shape {tuple(positions_T.shape)} for {len(ids)} tokens: one each is needed")

    rotation = rotary_angles(positions_T, rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling))
    x_TD = embedding_VD[ids_T].to(torch.float64)
    router_scores: list[Tensor] = []
    for index in range(config.num_layers):
        layer = layer_name(index)
        normed_TD = rms_norm(x_TD, weights[f"{layer}.input_layernorm.weight"], config.rms_norm_eps)
        x_TD = x_TD + _attention_block(normed_TD, index, weights, config, lora, rotation, attend)
        normed_TD = rms_norm(x_TD, weights[f"{layer}.post_attention_layernorm.weight"], config.rms_norm_eps)
        if config.experts is not None and index in config.experts.layers:
            router_scores.append(product(normed_TD, weights[f"{layer}.mlp.gate.weight"]))
            x_TD = x_TD + _experts_block(normed_TD, router_scores[-1], f"{layer}.mlp.experts", weights, config.experts)
        else:
            x_TD = x_TD + _dense_mlp(normed_TD, f"{layer}.mlp", weights, lora)
    hidden_TD = rms_norm(x_TD, weights[f"{FINAL_NORM}.weight"], config.rms_norm_eps)
    return Decoded(hidden_TD, tuple(router_scores))


def logits_at(hidden_TD: Tensor, places: Sequence[int], weights: Weights, lora: Lora | None = None) -> Tensor:
    """Apply the head to chosen places only, so that no row is paid for that nobody asked about.

    Args:
        hidden_TD: Output of :func:`hidden_states`.
        places: The P places in the sequence to look at.
        weights: Weights by name.
        lora: Adapters by module name; None for a model without.

    Returns:
        Logits, float64, [P, V].
    """
    rows_PD = hidden_TD[torch.tensor(list(places), device=hidden_TD.device)]
    return linear(rows_PD, HEAD, weights, {} if lora is None else lora)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension (Zhang, Sennrich 2019, equation 4)."""
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight.to(torch.float64)


def _attention_block(
    x_TD: Tensor,
    index: int,
    weights: Weights,
    config: DecoderConfig,
    lora: Lora,
    rotation: tuple[Tensor, Tensor],
    attend: Attention,
) -> Tensor:
    """Attention of one layer, from the normed residual stream to what is added to it, [T, D]."""
    name, num_tokens = f"{layer_name(index)}.self_attn", x_TD.shape[0]
    q_TNH = linear(x_TD, f"{name}.q_proj", weights, lora).view(num_tokens, config.num_heads, config.head_dim)
    k_TKH = linear(x_TD, f"{name}.k_proj", weights, lora).view(num_tokens, config.num_kv_heads, config.head_dim)
    v_TKH = linear(x_TD, f"{name}.v_proj", weights, lora).view(num_tokens, config.num_kv_heads, config.head_dim)
    if config.qk_norm:
        q_TNH = rms_norm(q_TNH, weights[f"{name}.q_norm.weight"], config.rms_norm_eps)
        k_TKH = rms_norm(k_TKH, weights[f"{name}.k_norm.weight"], config.rms_norm_eps)
    q_NTH, k_KTH = rotate(q_TNH.transpose(0, 1), rotation), rotate(k_TKH.transpose(0, 1), rotation)
    mixed_NTH = attend(q_NTH, k_KTH, v_TKH.transpose(0, 1), config.window_in(index))
    return linear(mixed_NTH.transpose(0, 1).reshape(num_tokens, -1), f"{name}.o_proj", weights, lora)


def _experts_block(x_TD: Tensor, scores_TE: Tensor, name: str, weights: Weights, experts: Experts) -> Tensor:
    return experts_mlp(x_TD, scores_TE, weights[f"{name}.gate_up_proj"], weights[f"{name}.down_proj"], experts)


def _dense_mlp(x_TD: Tensor, name: str, weights: Weights, lora: Lora) -> Tensor:
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

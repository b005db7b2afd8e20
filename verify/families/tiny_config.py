"""A tiny config of any model type: the fields that say how large a model is are made small, all others stay.

A family that is built otherwise than published in kind, not only in size, would be judged by what it is not. So every
kind of layer that the default config has must be in the tiny one, and windows, chunks and selections of keys are
shorter than the sequences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

VOCAB_SIZE = 128

_HIDDEN, _INNER, _HEADS, _KV_HEADS, _HEAD_DIM, _EXPERTS, _PER_TOKEN = 64, 96, 4, 2, 16, 4, 2
_LAYERS = 4
_POSITIONS = 256
_WINDOW = 16

_SIZES: dict[str, int] = {
    name: size
    for names, size in (
        ("hidden_size d_model n_embd dim embedding_size emb_dim word_embed_proj_dim", _HIDDEN),
        ("num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers", _LAYERS),
        ("num_decoder_layers num_encoder_layers", _LAYERS),
        ("num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads", _HEADS),
        ("num_decoder_attention_heads num_encoder_attention_heads", _HEADS),
        ("num_key_value_heads num_kv_heads kv_n_heads", _KV_HEADS),
        ("head_dim v_head_dim attention_head_dim qk_nope_head_dim qk_rope_head_dim", _HEAD_DIM),
        ("intermediate_size ffn_dim n_inner decoder_ffn_dim encoder_ffn_dim", _INNER),
        ("moe_intermediate_size shared_expert_intermediate_size ffn_hidden_size expert_ffn_hidden_size", _INNER),
        ("num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num", _EXPERTS),
        ("num_experts_per_tok num_experts_per_token moe_topk moe_top_k", _PER_TOKEN),
        ("n_group num_group num_expert_group topk_group", 1),
        ("sliding_window sliding_window_size window_size attention_window_size attention_chunk_size", _WINDOW),
        ("index_topk", 8),
        ("q_lora_rank kv_lora_rank", 32),
        ("hidden_size_per_layer_input", 8),
        ("rotary_dim", 8),
        ("dff dim_ff shared_intermediate_size", _INNER),
        ("dim_head index_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim", _HEAD_DIM),
        ("linear_num_heads linear_num_value_heads", _HEADS),
        ("index_n_heads", 16),
        ("linear_num_key_heads", _KV_HEADS),
        ("moe_k", _PER_TOKEN),
        ("mamba_d_ssm", 2 * _HIDDEN),
        ("mamba_n_heads mamba_num_heads", 2 * _HIDDEN // _HEAD_DIM),
        ("mamba_d_head mamba_head_dim mamba_d_state ssm_state_size", _HEAD_DIM),
        ("mamba_chunk_size chunk_size", _WINDOW),
        ("encoder_hash_byte_group_vocab", 64),
    )
    for name in names.split()
}
"""Sizes by the names of fields; a field that is smaller already stays."""
_VOCABULARIES = "vocab_size text_vocab_size vocab_size_per_layer_input"
_POSITION_TABLES = "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions"

_WITHOUT_DEFAULT: Mapping[str, int] = {"head_dim": _HEAD_DIM, "num_key_value_heads": _HEADS}
"""What most configs work out themselves where it is None, and some models need."""

_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    # No default for what the model cannot do without.
    "dbrx": {"attn_config": {"kv_n_heads": _KV_HEADS, "rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": _PER_TOKEN},
    "dots1": {"n_routed_experts": _EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": _PER_TOKEN},
    # Both kinds of layers own keys, and both borrow them.
    "gemma3n_text": {"num_hidden_layers": 10, "num_kv_shared_layers": 5, "intermediate_size": _INNER},
    # Hybrids as published; by default every layer is of one kind, or there is no default.
    "bamba": {"attn_layer_indices": [1, 3]},
    "falcon_h1": {"mamba_d_head": _HEAD_DIM},
    "lfm2": {"layer_types": ["conv", "full_attention"] * (_LAYERS // 2)},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (_LAYERS // 2)},
    "mamba2": {"num_heads": 2 * _HIDDEN // _HEAD_DIM},  # heads share twice the width
    "qwen4_exp_text": {
        "indexer_n_heads": _HEADS,
        "indexer_kv_heads": 1,
        "indexer_head_dim": _HEAD_DIM,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "reformer": {"axial_pos_embds": False},  # their factors make the width
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 12},
    "zamba2": {"num_hidden_layers": 6, "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2},
    "gpt_neo": {"attention_types": [[["global", "local"], _LAYERS // 2]]},
}
"""What no rule gives, by model type."""

_GREATER_DEPTHS = (6, 8, 12, 16)


def tiny_config(model_type: str, *, vocab_size: int = VOCAB_SIZE, num_positions: int = _POSITIONS) -> PretrainedConfig:
    """The config of a model type at the smallest size, at the least depth that has every kind of layer.

    Args:
        model_type: A model type of transformers.
        vocab_size: Size of the vocabulary.
        num_positions: Positions that a model with a table of them has.

    Returns:
        Its config; whatever is wrong with it is raised by the config class.

    Raises:
        ValueError: A kind of layer of the default config is in none of the depths tried.
    """
    config_class = CONFIG_MAPPING[model_type]
    default = config_class()
    fields = _tiny_fields(
        default, _SIZES | _of_names(_VOCABULARIES, vocab_size) | _of_names(_POSITION_TABLES, num_positions)
    )
    for attempt in (fields, *(_with_depth(fields, depth) for depth in _GREATER_DEPTHS)):
        config = config_class(**attempt)
        if layer_kinds(config) >= layer_kinds(default):
            return config
    missing = ", ".join(sorted(layer_kinds(default) - layer_kinds(config)))
    raise ValueError(f"no layer of kind {missing} at {_GREATER_DEPTHS[-1]} layers or fewer")


def _of_names(names: str, size: int) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


def _with_depth(fields: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """The same fields with another number of layers, in the config itself and in that of its language model."""
    deeper = {name: depth if name == "num_hidden_layers" else value for name, value in fields.items()}
    if isinstance(text := deeper.get("text_config"), Mapping):
        deeper["text_config"] = _with_depth(text, depth)
    return deeper


def layer_kinds(config: PretrainedConfig) -> frozenset[str]:
    """The kinds of layers that a config names; none where all are of one kind."""
    text = config.get_text_config(decoder=True)
    return frozenset(map(str, getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()))


def _tiny_fields(default: PretrainedConfig, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The fields that are to be given: sizes, special tokens inside the vocabulary, and the same of parts."""
    # A config may write a field under another name than the one that it takes.
    published = {
        **{field.name: vars(default).get(field.name) for field in dataclasses.fields(default)},
        **default.to_dict(),
    }
    fields: dict[str, Any] = {}
    for name, value in published.items():
        part = getattr(default, name) if name in default.sub_configs else None
        if isinstance(part, PretrainedConfig):
            fields[name] = _tiny_fields(part, sizes)
        elif name in sizes and isinstance(value, int) and not isinstance(value, bool):
            fields[name] = min(value, sizes[name])
        elif name in _WITHOUT_DEFAULT and value is None:
            fields[name] = _WITHOUT_DEFAULT[name]
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int) and value >= sizes["vocab_size"]:
            fields[name] = 0
    if "kv_lora_rank" in fields and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = _HEADS  # latent attention has keys for every head
    if "is_decoder" in published:
        fields["is_decoder"] = True
    return {**fields, **_SPECIAL.get(default.model_type, {})}

"""Fields of a transformers config, read one group at a time; what they ask for and the oracle lacks is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_impl.experts import Experts
from reference_impl.rope import Llama3Scaling

HfConfig = Mapping[str, Any]

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # Besides None, the values under which a decoder computes as if it had no such field.
    "attention_dropout": (0,),
    "hidden_dropout": (0,),
    "resid_pdrop": (0,),
    "embd_pdrop": (0,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "residual_multiplier": (1,),
    "embedding_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "clip_qkv": (),
    "attention_chunk_size": (),
    "attn_temperature_tuning": (False,),
    "no_rope_layers": ([],),
    "use_bidirectional_attention": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "use_parallel_residual": (False,),
    "n_shared_experts": (0,),
    "shared_expert_intermediate_size": (0,),
    "n_group": (1,),
    "topk_group": (1,),
    "routed_scaling_factor": (1,),
    "scoring_func": ("softmax",),
    "quantization_config": (),
}
_ROPE_FIELDS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_LLAMA3_FIELDS = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}


def required(config: HfConfig, name: str) -> Any:
    """The value of a field that the oracle does not guess.

    Raises:
        ValueError: The field is missing or None.
    """
    value = config.get(name)
    if value is None:
        raise ValueError(f"the config has no {name}: the oracle does not guess it")
    return value


def refuse_other_mathematics(config: HfConfig) -> None:
    """Refuse fields of other architectures that would change what is computed.

    Raises:
        ValueError: With the field, its value and the values that change nothing.
    """
    if config.get("hidden_act") != "silu":
        raise ValueError(f"hidden_act is {config.get('hidden_act')!r}: the oracle computes only 'silu'")
    for name, neutral in _NEUTRAL.items():
        value = config.get(name)
        if value is not None and value not in neutral:
            others = "".join(f" or {each!r}" for each in neutral)
            raise ValueError(f"{name} is {value!r}: the oracle does not compute it; it knows only None{others}")


def read_rope(config: HfConfig) -> tuple[float, Llama3Scaling | None]:
    """Rotary base and scaling, from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``.

    Raises:
        ValueError: No base or two, a type other than default and llama3, a field that the type does not have or
            lacks, heads that are rotated in part.
    """
    place = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(place) or {}
    if place == "rope_scaling" and config.get("rope_parameters"):
        raise ValueError("the config has rope_scaling and rope_parameters: give one of them")
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ("default", "llama3"):
        raise ValueError(f"rope type {rope_type!r}: the oracle computes only 'default' and 'llama3'")
    fields = _ROPE_FIELDS | (_LLAMA3_FIELDS if rope_type == "llama3" else set())
    if unknown := sorted(rope.keys() - fields):
        raise ValueError(f"{place} of type {rope_type!r} has {', '.join(unknown)}: it should have no such field")
    if any(each.get("partial_rotary_factor") not in (None, 1) for each in (rope, config)):
        raise ValueError("partial_rotary_factor is not 1: the oracle rotates whole heads only")
    return _rope_theta(rope, config), _llama3_scaling(rope, place) if rope_type == "llama3" else None


def _rope_theta(rope: HfConfig, config: HfConfig) -> float:
    thetas = {float(each["rope_theta"]) for each in (rope, config) if each.get("rope_theta") is not None}
    if not thetas:
        raise ValueError("the config has no rope_theta, neither at the top nor under rope_parameters")
    if len(thetas) > 1:
        raise ValueError(f"the config has rope_theta {' and '.join(map(str, sorted(thetas)))}: give it once")
    return thetas.pop()


def _llama3_scaling(rope: HfConfig, place: str) -> Llama3Scaling:
    if missing := sorted(name for name in _LLAMA3_FIELDS if rope.get(name) is None):
        raise ValueError(f"{place} of type 'llama3' has no {', '.join(missing)}: the oracle does not guess it")
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_length=int(rope["original_max_position_embeddings"]),
    )


def read_experts(config: HfConfig) -> Experts:
    """The experts of a Qwen3-MoE decoder.

    A layer has experts unless ``mlp_only_layers`` names it, if its number, counted from 1, is a multiple of
    ``decoder_sparse_step``.

    Raises:
        ValueError: A field that is missing, two counts of experts, or the router's auxiliary loss asked for.
    """
    if config.get("output_router_logits"):
        raise ValueError(
            "output_router_logits is True: the auxiliary loss of the router, which it adds, is not computed in the "
            "oracle's step; set it to False, and take that loss from reference_impl.router_loss"
        )
    counts = {int(config[name]) for name in ("num_experts", "num_local_experts") if config.get(name) is not None}
    if len(counts) != 1:
        found = " and ".join(map(str, sorted(counts))) or "no number"
        raise ValueError(f"the config has {found} of experts under num_experts and num_local_experts: give one")
    step, dense = int(required(config, "decoder_sparse_step")), set(required(config, "mlp_only_layers"))
    if step < 1:
        raise ValueError(f"decoder_sparse_step is {step}: it must be positive")
    num_layers = int(required(config, "num_hidden_layers"))
    return Experts(
        count=counts.pop(),
        per_token=int(required(config, "num_experts_per_tok")),
        intermediate_size=int(required(config, "moe_intermediate_size")),
        shares_sum_to_one=bool(required(config, "norm_topk_prob")),
        layers=frozenset(index for index in range(num_layers) if index not in dense and (index + 1) % step == 0),
    )

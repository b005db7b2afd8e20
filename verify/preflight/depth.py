"""How deep the float64 oracle can go: all layers where they fit, else as many as do, at full width."""

from __future__ import annotations

from dataclasses import dataclass

from reports.words import size
from verify.models.configs import NamedConfig
from verify.models.lora import LoraSpec
from verify.models.memory import num_weights

_FLOAT64_BYTES = 8
_SHARE_OF_MEMORY = 0.5
"""Of what a rank has of its host: the oracle's weights and activations are an estimate."""
_SHARE_OF_TIME = 0.25
"""Of the time that a probe may take."""
_FLOPS_PER_S = 50e9
"""In float64 on a few cores of a CPU (65 GFLOP/s measured on two)."""
_FLOPS_PER_WEIGHT = 8
"""For each token: forward passes of policy and reference, and a backward pass of twice as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleDepth:
    """On how many layers the oracle runs, and why not on more; "" where it runs on all."""

    num_layers: int
    why_cut: str = ""


def oracle_depth(
    config: NamedConfig,
    lora: LoraSpec,
    *,
    num_layers: int,
    num_tokens: int,
    itemsize: int,
    host_bytes: int | None,
    stage_s: float,
) -> OracleDepth:
    """The largest depth whose oracle fits into memory and time.

    Args:
        config: Sizes of the model.
        lora: The adapters.
        num_layers: Depth of the model.
        num_tokens: Of all sequences of a case.
        itemsize: Bytes of a weight of the model, which lies whole beside the oracle's copy.
        host_bytes: Memory of the machine for this rank; None where it is not known.
        stage_s: Seconds that a probe may take.

    Returns:
        The depth, at least one layer: whether that fits is then seen.
    """
    for depth in range(num_layers, 0, -1):
        weights = num_weights(config, depth, lora)
        kept = (depth * kept_per_token(config, lora) + 2 * _FLOAT64_BYTES * config.vocab_size) * num_tokens
        needed = weights * (itemsize + _FLOAT64_BYTES) + kept
        seconds = _FLOPS_PER_WEIGHT * weights * num_tokens / _FLOPS_PER_S
        fits = host_bytes is None or needed <= _SHARE_OF_MEMORY * host_bytes
        if depth == num_layers:
            whole = f"{size(needed)} and about {seconds:.0f} s of float64 at full depth"
        if fits and seconds <= _SHARE_OF_TIME * stage_s:
            return OracleDepth(num_layers=depth, why_cut="" if depth == num_layers else whole)
    return OracleDepth(num_layers=1, why_cut="" if num_layers == 1 else whole)


def kept_per_token(config: NamedConfig, lora: LoraSpec) -> int:
    """Bytes that autograd keeps of one token in one layer in float64; an estimate, rounded up (derived).

    The input of each of the seven linear layers' adapters and their low-rank products; of attention queries, keys and
    values (before and after rotation) and the output; of the MLP gate, its activation, up and their product; what layer
    norms and the norms of queries and keys normalise.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    return (10 * hidden + 5 * queries + 7 * keys + 4 * inner + 7 * lora.rank) * _FLOAT64_BYTES

"""How deep the float64 oracle can go: all layers where they fit, else as many as do, at full width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reports.words import size
from verify.models.configs import NamedConfig
from verify.models.lora import LoraSpec
from verify.models.memory import num_weights

_FLOAT64_BYTES = 8
_SHARE_OF_MEMORY = 0.5
"""Of what a rank has: what autograd keeps is an estimate, and passes of the model itself come after."""
_SHARE_OF_TIME = 0.3
"""Of the time that a probe may take: what is expected is an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleDepth:
    """On how many layers the oracle runs, and why not on more; "" where it runs on all."""

    num_layers: int
    why_cut: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleMeans:
    """What the oracle has on the slowest and fullest rank.

    Args:
        available_bytes: Memory of the device for one rank; None where it is not known.
        expected_s: From a depth to the seconds that oracle and all else in one process will take.
        stage_s: Seconds that a probe may take.
    """

    available_bytes: int | None
    expected_s: Callable[[int], float]
    stage_s: float


def oracle_depth(
    config: NamedConfig,
    lora: LoraSpec,
    *,
    num_layers: int,
    tokens_of_group: int,
    itemsize: int,
    means: OracleMeans,
) -> OracleDepth:
    """The largest depth whose oracle fits into memory and time.

    The oracle keeps weights as they are, with the largest one and the activations of one group in float64.

    Args:
        config: Sizes of the model.
        lora: The adapters.
        num_layers: Depth of the model.
        tokens_of_group: Of the sequences of the largest group.
        itemsize: Bytes of a weight.
        means: What there is.

    Returns:
        The depth, at least one layer: whether that fits is then seen.
    """
    whole = ""
    largest = max(config.vocab_size, config.intermediate_size) * config.hidden_size * _FLOAT64_BYTES
    for depth in range(num_layers, 0, -1):
        weights = num_weights(config, depth, lora)
        kept = (depth * kept_per_token(config, lora) + 2 * _FLOAT64_BYTES * config.vocab_size) * tokens_of_group
        needed = weights * itemsize + largest + kept
        seconds = means.expected_s(depth)
        whole = whole or f"all of them would take {size(needed)} and about {seconds:.0f} s in one process"
        fits = means.available_bytes is None or needed <= _SHARE_OF_MEMORY * means.available_bytes
        if fits and seconds <= _SHARE_OF_TIME * means.stage_s:
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

"""How deep the float64 oracle can go: all layers where they fit, else as many as do, at full width."""

from __future__ import annotations

from dataclasses import dataclass

from reports.words import size
from verify.models.configs import NamedConfig
from verify.models.lora import LoraSpec
from verify.models.memory import num_weights
from verify.preflight.batch_memory import PlannedBatch, needed_bytes

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
    batch: PlannedBatch,
    itemsize: int,
    host_bytes: int | None,
    stage_s: float,
) -> OracleDepth:
    """The largest depth whose oracle fits into memory and time.

    Args:
        config: Sizes of the model.
        lora: The adapters.
        num_layers: Depth of the model.
        batch: What the oracle runs on: every group of a case on one rank.
        itemsize: Bytes of a weight of the model, which lies whole beside the oracle's copy.
        host_bytes: Memory of the machine for this rank; None where it is not known.
        stage_s: Seconds that a probe may take.

    Returns:
        The depth, at least one layer: whether that fits is then seen.
    """
    for depth in range(num_layers, 0, -1):
        weights = num_weights(config, depth, lora)
        oracle = needed_bytes(config, lora, batch, num_layers=depth, itemsize=_FLOAT64_BYTES, world_size=1)
        needed = weights * (itemsize + _FLOAT64_BYTES) + oracle.activations + oracle.logits
        seconds = _FLOPS_PER_WEIGHT * weights * batch.tokens / _FLOPS_PER_S
        fits = host_bytes is None or needed <= _SHARE_OF_MEMORY * host_bytes
        if depth == num_layers:
            whole = f"{size(needed)} and about {seconds:.0f} s of float64 at full depth"
        if fits and seconds <= _SHARE_OF_TIME * stage_s:
            return OracleDepth(num_layers=depth, why_cut="" if depth == num_layers else whole)
    return OracleDepth(num_layers=1, why_cut="" if num_layers == 1 else whole)

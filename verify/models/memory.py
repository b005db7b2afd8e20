"""What the weights of a model take, so that one that cannot fit is refused before it is built."""

from __future__ import annotations

import os
from collections.abc import Sequence

from reports.words import size
from verify.models.configs import NamedConfig
from verify.models.lora import LoraSpec
from verify.models.request import DTYPES, ModelRequest


def num_weights(config: NamedConfig, num_layers: int, lora: LoraSpec) -> int:
    """Weights of a Qwen3 decoder and its adapters, tied ones once.

    Args:
        config: The shape.
        num_layers: Depth.
        lora: The adapters: rank * (in + out) for each linear layer that gets one.
    """
    hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    linear = {
        "q_proj": (hidden, queries),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (queries, hidden),
        "gate_proj": (hidden, config.intermediate_size),
        "up_proj": (hidden, config.intermediate_size),
        "down_proj": (config.intermediate_size, hidden),
    }
    norms = 2 * hidden + 2 * config.head_dim
    layer = norms + sum(size_in * size_out for size_in, size_out in linear.values())
    adapters = lora.rank * sum(sum(linear[target]) for target in lora.targets)
    embeddings = (1 if config.tie_word_embeddings else 2) * config.vocab_size * hidden
    return embeddings + hidden + num_layers * (layer + adapters)


def check_memory(request: ModelRequest, dtypes: Sequence[str], available: int | None = None) -> None:
    """Refuse seeded weights that this machine cannot hold: passes need more still, so none could be run.

    Args:
        request: The request; a checkpoint lies on a disk of this machine and is not looked at.
        dtypes: Names of the dtypes of the run; one model at a time is held.
        available: Bytes of memory; those of this machine if None.

    Raises:
        ValueError: With what the weights would take.
    """
    available = _memory() if available is None else available
    if request.is_checkpoint or available is None:
        return
    config = request.seeded_config
    count = num_weights(config, request.num_layers or config.num_hidden_layers, request.lora)
    needed, dtype = max((count * DTYPES[dtype].itemsize, dtype) for dtype in dtypes)
    if needed > available:
        raise ValueError(
            f"model {request.name}: its {count:,} weights would take {size(needed)} in {dtype}, and this machine has "
            f"{size(available)} of memory: give a smaller one, or fewer layers (--layers)"
        )


def _memory() -> int | None:
    """Bytes of physical memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # no sysconf (Windows), or not these names
        return None

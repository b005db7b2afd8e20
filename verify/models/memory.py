"""What the weights of a model take, and their gradients, so that one that cannot fit is refused before it is built."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from reports.words import size
from verify.models.checkpoint import kept_layers
from verify.models.configs import NamedConfig
from verify.models.dtypes import dtype_of_weights
from verify.models.family import num_parameters
from verify.models.lora import ATTENTION_TARGETS, LoraSpec
from verify.models.request import ModelRequest, requested_config


def num_weights(config: NamedConfig, num_layers: int, lora: LoraSpec | None) -> int:
    """Weights of a decoder and its adapters, tied ones once.

    Args:
        config: The shape.
        num_layers: Depth.
        lora: The adapters: rank * (in + out) for each linear layer that gets one; None for none.
    """
    hidden, experts = config.hidden_size, config.experts
    sparse_layers = sum(map(experts.stand_in, range(num_layers))) if experts else 0
    dense_layers = num_layers - sparse_layers
    attention, mlp = _attention_shapes(config), _mlp_shapes(config)
    linear = (attention | mlp) if experts is None else attention
    adapters = 0
    if lora is not None:
        adapters = lora.rank * sum(sum(linear[target]) for target in lora.targets_in(has_experts=experts is not None))
    norms = 2 * hidden + (2 * config.head_dim if config.model_type in ("qwen3", "qwen3_moe") else 0)
    count = num_layers * (norms + _products(attention) + _num_biases(config) + adapters) + dense_layers * _products(mlp)
    if experts is not None:
        each = hidden + 3 * hidden * experts.moe_intermediate_size  # a row of the router, and three matrices
        count += sparse_layers * experts.num_experts * each
    embeddings = (1 if config.tie_word_embeddings else 2) * config.vocab_size * hidden
    return embeddings + hidden + count


def _attention_shapes(config: NamedConfig) -> dict[str, tuple[int, int]]:
    """Linear layers of attention by name, (in, out)."""
    hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    return {
        "q_proj": (hidden, queries),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (queries, hidden),
    }


def _mlp_shapes(config: NamedConfig) -> dict[str, tuple[int, int]]:
    """Linear layers of a dense MLP by name, (in, out)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}


def _products(shapes: Mapping[str, tuple[int, int]]) -> int:
    return sum(size_in * size_out for size_in, size_out in shapes.values())


def _num_biases(config: NamedConfig) -> int:
    """Biases of one layer."""
    sizes = {name: size_out for name, (_, size_out) in (_attention_shapes(config) | _mlp_shapes(config)).items()}
    names: tuple[str, ...] = ATTENTION_TARGETS if config.attention_bias else ()
    if config.model_type == "qwen2":
        names = ("q_proj", "k_proj", "v_proj")
    if config.mlp_bias:
        names += ("gate_proj", "up_proj", "down_proj")
    return sum(sizes[name] for name in names)


_COMPARING = 4
"""Copies of all gradients that a comparison makes: a vector of either side, their difference, and its size."""


def check_memory(
    request: ModelRequest,
    dtypes: Sequence[str],
    available: int | None = None,
    *,
    num_forms: int = 5,
    num_cases: int = 1,
    held_in_float64: bool = False,
    ranks_here: int = 1,
    copies: int = 1,
) -> None:
    """Refuse what this machine cannot hold: passes need more still, so none could be run.

    Weights are counted; where every weight is trained gradients too, which are held in float64: the expected one of a
    case (of every case, where several dtypes have the same), one of each form of the unpacked path and one of a
    subject. On 22.8 million weights 1.8 GiB are counted for three forms and 2.1 for five; measured peaks are 2.3 and
    2.7, half a GiB of which is there without any weight.

    Args:
        request: The request. A tiny family is not looked at.
        dtypes: Names of the dtypes of the run; one model at a time is held, and that of the frozen policy beside it.
        available: Bytes of memory; those of this machine if None.
        num_forms: Forms of the unpacked path, its harmless variations included.
        num_cases: Cases of the run.
        held_in_float64: There is no oracle: the model is held in float64 as well, for its own unpacked path.
        ranks_here: Ranks on this machine; on a CPU their weights share its memory.
        copies: Of the weights on each of them at the same time, where there are several.

    Raises:
        ValueError: With what they would take, and how much that is too much.
    """
    available = _memory() if available is None else available
    trains_all = request.train == "all"
    if available is None or request.family:
        return
    (count, trained), models = _num_weights(request), 2 if request.has_other_model else 1
    widest, dtype = max((dtype_of_weights(dtype).itemsize, dtype) for dtype in dtypes)
    needed, what, fewer = models * count * widest, f"its {models * count:,} weights", "fewer layers (--layers)"
    if ranks_here > 1 and torch.device(request.device).type == "cpu":
        needed *= ranks_here * copies
        times = {1: "once", 2: "twice"}.get(copies, f"{copies} times")
        what, fewer = f"{what}, {times} on each of {ranks_here} ranks of this machine,", f"{fewer} or ranks"
    if held_in_float64 and torch.device(request.device).type == "cpu":  # the copy lies where the model does
        needed += models * count * torch.float64.itemsize
        what = f"{what}, and again in float64 for its own unpacked path,"
    if trains_all:
        expected = num_cases if len(dtypes) > 1 else 1
        gradients = trained * (widest + (expected + num_forms + 1 + _COMPARING) * torch.float64.itemsize)
        needed += gradients
        what, fewer = f"{what}, with {size(gradients)} of gradients,", f"{fewer}, cases, dtypes or variations"
    if needed > available:
        raise ValueError(
            f"model {request.name}: {what} would take {size(needed)} in {dtype}, and this machine has "
            f"{size(available)} of memory, {size(needed - available)} too few: give a smaller one, or {fewer}"
        )


def _num_weights(request: ModelRequest) -> tuple[int, int]:
    """All weights, and those that ``--train all`` trains; adapters on a checkpoint are small and not counted."""
    if request.is_checkpoint:
        config = requested_config(request)
        return num_parameters(config, kept_layers(Path(request.name), config, request.num_layers))
    config = request.seeded_config
    lora = request.lora if request.train == "lora" else None
    count = num_weights(config, request.num_layers or config.num_hidden_layers, lora)
    return count, count


def _memory() -> int | None:
    """Bytes of physical memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # no sysconf (Windows), or not these names
        return None

"""FLOPs of a step by formula, term by term, as ``FlopCounterMode`` counts them.

Status: derived, and held against the trace.

A forward pass of T slots through L layers, with W the entries of a layer's linear weights, N heads of H, D hidden, V
vocabulary, C completion tokens, and as many cells as kernel calls have pairs of a query and a key:

    linear layers  2 W T L        attention  4 N H cells L        head  2 D V C

An adapter of rank r on a linear layer from i to o has r (i + o) entries, all of them in A below. A backward pass takes
the products again for the gradient of what goes in, and again for that of what is trained; attention takes five
products instead of two, because its kernel computes the scores anew. What differs from these rules has a term.

Cells of one head, p prompt and r response tokens: unpacked ``(p + r)^2`` for each sequence, or the longest squared
where rows are padded; dense ``(p + sum r)^2`` for each group, or the longest squared; sparse the square of the whole
row, of which its blocks are few; split ``p^2 + sum r (p + r)`` for each group. Kernels that skip what lies behind the
diagonal compute the pairs of `verify.packing_plan.costs` instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.cost_record import PathName
from verify.forecast.request import Training
from verify.packing_plan.costs import GroupLengths
from verify.packing_plan.decoder_sizes import GATED_FAMILIES

_FEEDS_FROM_THE_INPUT = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a step's FLOPs.

    Args:
        name: What it is.
        flops: How many; negative where a rule counts too many.
    """

    name: str
    flops: int


@dataclass(frozen=True, slots=True)
class CallSizes:
    """Sizes of one forward call: slots, cells of one head, completion tokens."""

    slots: int
    cells: int
    completions: int


def call_sizes(path: PathName, lengths: Sequence[GroupLengths]) -> list[CallSizes]:
    """The sizes of each forward call of a path."""
    completions = sum(sum(group.responses) for group in lengths)
    if path == "unpadded":
        return [
            CallSizes(group.prompt + response, (group.prompt + response) ** 2, response)
            for group in lengths
            for response in group.responses
        ]
    if path == "padding-free":
        sequences = [length for group in lengths for length in group.sequences]
        return [CallSizes(sum(sequences), sum(length**2 for length in sequences), completions)]
    if path == "sparse":
        slots = sum(group.packed for group in lengths)
        return [CallSizes(slots, slots**2, completions)]
    if path == "split":
        cells = sum(
            group.prompt**2 + sum(response * (group.prompt + response) for response in group.responses)
            for group in lengths
        )
        return [CallSizes(sum(group.packed for group in lengths), cells, completions)]
    if path == "padded":
        rows = [length for group in lengths for length in group.sequences]
    else:
        rows = [group.packed for group in lengths]
    return [CallSizes(len(rows) * max(rows), len(rows) * max(rows) ** 2, completions)]


def _has_windows(config: Any) -> bool:
    """Whether some layers have a sliding window."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is not None
    return "sliding_attention" in kinds


def closed_form(config: Any, training: Training, path: PathName, lengths: Sequence[GroupLengths]) -> tuple[Term, ...]:
    """The terms of a step; none for a model or for adapters that the formulas do not describe.

    Args:
        config: The transformers config.
        training: How it is trained.
        path: How log-probs are computed.
        lengths: The batch.
    """
    linear = _linear_layers(config)
    if linear is None or not set(training.lora.targets) >= set(linear):
        return ()
    if path in ("padding-free", "split") and _has_windows(config):  # whose calls leave out keys that none can see
        return ()
    calls = call_sizes(path, lengths)
    slots, cells, completions = (sum(getattr(c, name) for c in calls) for name in ("slots", "cells", "completions"))
    layers, rank = config.num_hidden_layers, training.lora.rank
    through_layers = 2 * slots * layers * sum(size_in * size_out for size_in, size_out in linear.values())
    through_adapters = 2 * slots * layers * rank * sum(map(sum, linear.values()))
    products = 2 * config.num_attention_heads * config.head_dim * cells * layers
    through_head = 2 * config.hidden_size * config.vocab_size * completions
    recomputed = sum(max(0, call.completions - training.logit_chunk) for call in calls)
    terms = [
        Term("reference pass: linear layers", through_layers),
        Term("reference pass: attention", 2 * products),
        Term("reference pass: head, on predictors alone", through_head),
        Term("policy pass: linear layers", through_layers),
        Term("policy pass: attention", 2 * products),
        Term("policy pass: head, on predictors alone", through_head),
        Term("backward pass: gradients of inputs of linear layers", through_layers),
        Term("backward pass: attention, five products for two", 5 * products),
        Term("backward pass: gradient of the head's input", through_head),
        Term(
            "backward pass: logits computed again, all chunks but the first of a call",
            2 * config.hidden_size * config.vocab_size * recomputed,
        ),
    ]
    if training.train == "lora":
        terms += [
            Term("policy pass: adapters", through_adapters),
            Term("backward pass: adapters, gradients of inputs and of factors", 2 * through_adapters),
        ]
        if not training.checkpointing:
            first = sum(size_in * (size_out + rank) for size_in, size_out in map(linear.get, _FEEDS_FROM_THE_INPUT))  # type: ignore[misc]
            terms.append(
                Term("the first layer's queries, keys and values: their input has no gradient", -2 * slots * first)
            )
    else:
        terms += [
            Term("backward pass: gradients of linear weights", through_layers),
            Term("backward pass: gradient of the head's weights", through_head),
        ]
    if training.checkpointing:
        again = through_layers + 2 * products + (through_adapters if training.train == "lora" else 0)
        size_in, size_out = linear["down_proj"]
        last = rank * size_out if training.train == "lora" else size_in * size_out
        terms += [
            Term("backward pass: layers computed again", again),
            Term("but for each layer's last product, which nothing waits for", -2 * slots * layers * last),
        ]
    return tuple(term for term in terms if term.flops)


def _linear_layers(config: Any) -> Mapping[str, tuple[int, int]] | None:
    """Linear layers of a decoder layer by name, (in, out); None for a decoder that is built otherwise."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if config.model_type not in GATED_FAMILIES or kinds != {"full_attention"} or config.model_type == "phi3":
        return None
    hidden, inner = config.hidden_size, config.intermediate_size
    head_dim = getattr(config, "head_dim", None)
    if head_dim is None:
        return None
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    return {
        "q_proj": (hidden, queries),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (queries, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }

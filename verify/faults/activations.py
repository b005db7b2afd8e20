"""Faults inside the model: what passes from one module to the next, forward and backward.

Module names end as in transformers' Qwen3, under PEFT where there are adapters.

Shape letters: B rows, T slots.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from functools import partial

import torch
from torch import Tensor

from verify.faults.conditions import PADDED_ROW, PROMPT_OF_TWO, REJECTED_OF_TWO
from verify.faults.fault import PREFERENCES, ROUNDING_IN_BFLOAT16, ROW_PER_GROUP, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Activations

_EMBEDDING = ".embed_tokens"
_FINAL_NORM = ".model.norm"
_KEYS_AND_VALUES = (".self_attn.k_proj", ".self_attn.v_proj")
_DECAY = 0.8
_LEAK = 0.3
_CONVOLUTION = 4


def _foreign(rows: Rows) -> Tensor:
    """Earlier slots of the row that are on no path of the query: what must not reach it; bool, [B, T, T]."""
    foreign = []
    for row in rows.rows:
        paths: list[set[int]] = []
        for index, piece in enumerate(row):
            paths.append({index} | (set() if piece.parent is None else paths[piece.parent]))
        of_slot = [index for index, piece in enumerate(row) for _ in piece.ids]
        foreign.append([[key not in paths[query] for key in of_slot] for query in of_slot])
    return torch.tensor(foreign).tril()


def _distance(rows: Rows) -> Tensor:
    slots = torch.arange(rows.num_slots)
    return slots[:, None] - slots[None, :]


def state_leaks(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """A recurrent state ``h_t = a h_(t-1) + x_t`` is not reset where a segment starts."""
    if not module.endswith(_EMBEDDING):
        return output
    weights = _LEAK * _DECAY ** _distance(rows).clamp(min=0) * _foreign(rows)
    return output + weights.to(output) @ output


def convolution_bleeds(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """A causal convolution of width 4 reads across the start of a segment."""
    if not module.endswith(_FINAL_NORM):
        return output
    weights = _LEAK * (_foreign(rows) & (_distance(rows) < _CONVOLUTION))
    return output + weights.to(output) @ output


def query_scaled(factor: float, honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """Scores have another scale."""
    return factor * output if module.endswith(".q_norm") else output


def dropped(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """Dropout of 0.1 behind attention."""
    if not module.endswith(".self_attn.o_proj"):
        return output
    generator = torch.Generator().manual_seed(zlib.crc32(module.encode()))
    kept = torch.rand(output.shape, generator=generator) >= 0.1
    return output * kept.to(output) / 0.9


def nan_in_padding(where: str, honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """Padding slots attend to nothing and hold NaN."""
    return output.masked_fill(rows.padding[..., None], math.nan) if module.endswith(where) else output


def garbage_in_padding_gradient(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """The gradient buffer of keys is not cleared behind the last boundary."""
    if not module.endswith(".self_attn.k_proj") or not output.requires_grad:
        return output
    view = output.view_as(output)
    view.register_hook(partial(_ones_where, rows.padding[..., None]))  # type: ignore[no-untyped-call]
    return view


def _ones_where(place: Tensor, gradient: Tensor) -> Tensor:
    return gradient.masked_fill(place.to(gradient.device), 1.0)


def prompt_slots(rows: Rows) -> Tensor:
    """Whether a slot belongs to a prompt; bool, [B, T, 1]."""
    in_prompt = [[piece.completion is None for piece in row for _ in piece.ids] for row in rows.rows]
    return torch.tensor(in_prompt)[..., None]


def prompt_cache_detached(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """Keys and values of the prompt come from a cache without a graph."""
    if not module.endswith(_KEYS_AND_VALUES):
        return output
    return torch.where(prompt_slots(rows).to(output.device), output.detach(), output)


def prompt_gradient_averaged(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """Gradients of the prompt's keys and values are averaged over its branches instead of summed."""
    if not module.endswith(_KEYS_AND_VALUES):
        return output
    constant, shares = output.detach(), shares_of_branches(rows).to(output)
    averaged = constant + shares * (output - constant)  # of equal value, to the last bit
    return torch.where(prompt_slots(rows).to(output.device), averaged, output)


def shares_of_branches(rows: Rows) -> Tensor:
    """One over the number of segments that hang on a slot's own, 1 where there are none; [B, T, 1]."""
    shares = []
    for row in rows.rows:
        hanging = Counter(piece.parent for piece in row)
        shares.append([1 / max(1, hanging[index]) for index, piece in enumerate(row) for _ in piece.ids])
    return torch.tensor(shares)[..., None]


def rounded(where: str, honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """An activation passes through bfloat16."""
    return output.to(torch.bfloat16).to(output.dtype) if module.endswith(where) else output


def scaled(where: str, factor: float, honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """An activation times a constant."""
    return factor * output if module.endswith(where) else output


FAULTS = (
    Fault(
        name="recurrent-state-leaks",
        stage="activations",
        replacement=state_leaks,
        what="A recurrent state is carried across segment boundaries; masks and positions are right.",
        imitates=("A10", "A11", "A12"),
        bites_where=REJECTED_OF_TWO,
        signature="first branch exact, later ones off, from their second token on",
    ),
    Fault(
        name="convolution-bleeds",
        stage="activations",
        replacement=convolution_bleeds,
        what="A causal convolution of width 4 reads across segment boundaries.",
        imitates=("A12",),
        bites_where=REJECTED_OF_TWO,
        signature="only tokens 1 to 3 of later branches are off",
    ),
    Fault(
        name="attention-scale-from-hidden-size",
        stage="activations",
        replacement=partial(query_scaled, math.sqrt(2.0)),
        what="Scores are scaled by hidden size / heads instead of the head dimension.",
        imitates=("A52",),
        signature="all tokens off",
        invisible_where="models whose heads times head dimension is the hidden size",
    ),
    Fault(
        name="dropout-active",
        stage="activations",
        replacement=dropped,
        what="Dropout of 0.1 is active in log-prob passes.",
        imitates=("A44", "A48"),
        signature="all tokens off by noise without structure, policy and reference alike",
        invisible_where="dropout of 0",
    ),
    Fault(
        name="nan-in-padding-attention",
        stage="activations",
        replacement=partial(nan_in_padding, ".self_attn.o_proj"),
        what="Padding slots, which may attend to nothing, get NaN from attention.",
        imitates=("A18",),
        bites_where=PADDED_ROW,
        packing=ROW_PER_GROUP,
        signature="NaN in padded rows from the second layer on, and in gradients",
        invisible_where="rows without padding",
    ),
    Fault(
        name="nan-in-padding-embedding",
        stage="activations",
        replacement=partial(nan_in_padding, _EMBEDDING),
        what="Padding slots hold NaN from the start, which zero attention weights do not stop.",
        imitates=("A19",),
        bites_where=PADDED_ROW,
        packing=ROW_PER_GROUP,
        signature="NaN in all tokens of padded rows, and in the loss",
        invisible_where="rows without padding",
    ),
    Fault(
        name="garbage-in-padding-gradient",
        stage="activations",
        replacement=garbage_in_padding_gradient,
        what="The key gradient of padding slots is uninitialised memory.",
        imitates=("A58",),
        bites_where=PADDED_ROW,
        packing=ROW_PER_GROUP,
        signature="forward quantities exact, gradients of key adapters off",
        invisible_where="forward quantities; rows without padding",
    ),
    Fault(
        name="prompt-cache-detached",
        stage="activations",
        replacement=prompt_cache_detached,
        what="Keys and values of the shared prompt are computed without a graph.",
        imitates=("A50", "A51"),
        kinds=PREFERENCES,
        signature="forward quantities exact, gradients of key and value adapters off",
        invisible_where="forward quantities",
    ),
    Fault(
        name="prompt-gradient-averaged",
        stage="activations",
        replacement=prompt_gradient_averaged,
        what="Gradients that the branches send to the prompt's keys and values are averaged instead of summed.",
        kinds=PREFERENCES,
        bites_where=PROMPT_OF_TWO,
        signature="forward quantities exact, gradients of all adapters off that the prompt passes",
        invisible_where="forward quantities; the less, the shorter the prompt and the fewer its branches",
    ),
    Fault(
        name="hidden-states-in-bfloat16",
        stage="activations",
        replacement=partial(rounded, _FINAL_NORM),
        what="Hidden states pass through bfloat16 on their way to the output head.",
        imitates=("A42", "A60"),
        signature="all tokens off by a part in a hundred, no structure",
        invisible_where="bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="adapter-scaling-ignored",
        stage="activations",
        replacement=partial(scaled, ".lora_B.default", 0.5),
        what="Adapters are added with scale 1 instead of alpha / rank, here 2.",
        trains=("lora",),
        imitates=("A37", "A52"),
        signature="reference exact, policy log-probs and gradients off",
        invisible_where="alpha = rank; adapters at initialisation",
    ),
    Fault(
        name="value-adapter-missing",
        stage="activations",
        replacement=partial(scaled, ".v_proj.lora_B.default", 0.0),
        what="A fused attention path reads the base weight of the value projection.",
        trains=("lora",),
        imitates=("A52", "A49"),
        signature="reference exact, policy log-probs off, gradients of value adapters 0",
        invisible_where="adapters at initialisation",
    ),
)

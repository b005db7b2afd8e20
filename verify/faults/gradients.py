"""Faults of the backward pass that reach trained tensors: forward quantities are exact throughout.

Names are those of LoRA tensors (``...o_proj.lora_A.default.weight``), or where every weight is trained of weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.conditions import BRANCH_ON_A_BLOCK, RAGGED_ROW
from verify.faults.fault import PREFERENCES, ROUNDING_IN_BFLOAT16, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Gradients

_FIRST_LAYER = ".layers.0."
_BLOCK = 128


def with_gradient(parameter: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A tensor of equal value whose gradient is changed on its way to the parameter.

    Args:
        parameter: The trained tensor, which is left as it is.
        change: Gradient to gradient.

    Returns:
        A view of the parameter; the hook lives and dies with it.
    """
    view = parameter.view_as(parameter)
    view.register_hook(change)  # type: ignore[no-untyped-call]
    return view


def _times(factor: float, gradient: Tensor) -> Tensor:
    return factor * gradient


def _filled(value: float, gradient: Tensor) -> Tensor:
    return torch.full_like(gradient, value)


def _in_bfloat16(gradient: Tensor) -> Tensor:
    return gradient.to(torch.bfloat16).to(gradient.dtype)


def _second_half_stale(gradient: Tensor) -> Tensor:
    half = gradient.shape[-1] // 2
    return torch.cat((gradient[..., :half], gradient[..., : gradient.shape[-1] - half]), dim=-1)


def all_zero(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """Every gradient is exactly 0."""
    return with_gradient(parameter, partial(_filled, 0.0))


def first_layer_missing(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """LoRA tensors of the first layer are cut off the graph."""
    return parameter.detach() if _FIRST_LAYER in name else parameter


def only_first_layer(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """All but the first layer have gradients of exactly 0."""
    return parameter if _FIRST_LAYER in name else with_gradient(parameter, partial(_filled, 0.0))


def nan_in_ragged_rows(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """NaN where the row does not end on a block boundary."""
    return parameter if rows.num_slots % _BLOCK == 0 else with_gradient(parameter, partial(_filled, math.nan))


def huge_on_block_boundary(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """1e12 times too large for queries, where the first branch starts on a block boundary."""
    affected = len(rows.rows[0][0].ids) % _BLOCK == 0 and ".q_proj." in name
    return with_gradient(parameter, partial(_times, 1e12)) if affected else parameter


def rounded_to_bfloat16(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """Gradients are reduced in bfloat16."""
    return with_gradient(parameter, _in_bfloat16)


def slice_stale(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """Half of one tensor repeats the other half."""
    affected = ".layers.0.self_attn.v_proj." in name and ".lora_A." not in name
    return with_gradient(parameter, _second_half_stale) if affected else parameter


def one_tensor_scaled(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """One of all tensors is one part in a thousand too large."""
    affected = ".layers.0.self_attn.o_proj." in name and ".lora_B." not in name
    return with_gradient(parameter, partial(_times, 1.001)) if affected else parameter


def factor_b_doubled(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """Every B gets its gradient twice."""
    return with_gradient(parameter, partial(_times, 2.0)) if ".lora_B." in name else parameter


_FORWARD = "forward quantities"

FAULTS = (
    Fault(
        name="gradients-zero",
        stage="gradients",
        replacement=all_zero,
        what="All adapter gradients are exactly 0, as when a side channel is gone at recomputation.",
        imitates=("A49",),
        signature="loss exact, every gradient 0",
        invisible_where=_FORWARD,
    ),
    Fault(
        name="first-layer-without-gradient",
        stage="gradients",
        replacement=first_layer_missing,
        what="Checkpointed layers with frozen inputs give their adapters no gradient.",
        imitates=("A50",),
        kinds=PREFERENCES,
        signature="loss exact; LoRA tensors of the first layer have no gradient",
        invisible_where=_FORWARD,
    ),
    Fault(
        name="only-first-layer-has-gradient",
        stage="gradients",
        replacement=only_first_layer,
        what="Only the adapters of the first layer get a gradient.",
        imitates=("A51",),
        signature="loss exact, gradients of all later layers 0; a global norm hides it",
        invisible_where=_FORWARD + "; a model of one layer",
    ),
    Fault(
        name="nan-gradients-in-ragged-rows",
        stage="gradients",
        replacement=nan_in_ragged_rows,
        what="The backward pass is NaN where a row is no multiple of 128 slots.",
        imitates=("A53",),
        bites_where=RAGGED_ROW,
        signature="loss exact, every gradient NaN",
        invisible_where=_FORWARD + "; rows of 128, 256, ... slots",
    ),
    Fault(
        name="huge-gradients-on-block-boundary",
        stage="gradients",
        replacement=huge_on_block_boundary,
        what="The compiled backward pass indexes wrongly where a branch starts on a block boundary.",
        imitates=("A54",),
        kinds=CASE_KINDS,
        bites_where=BRANCH_ON_A_BLOCK,
        signature="loss exact, query gradients 1e12 times too large",
        invisible_where=_FORWARD + "; other offsets",
    ),
    Fault(
        name="gradients-in-bfloat16",
        stage="gradients",
        replacement=rounded_to_bfloat16,
        what="Gradients are reduced in bfloat16.",
        imitates=("A67",),
        signature="loss exact, every gradient element off by up to 0.4 %",
        invisible_where=_FORWARD + "; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="gradient-slice-stale",
        stage="gradients",
        replacement=slice_stale,
        what="Part of one gradient buffer keeps values that belong elsewhere.",
        imitates=("A63",),
        signature="loss exact, half of one tensor off",
        invisible_where=_FORWARD,
    ),
    Fault(
        name="one-gradient-off-by-a-thousandth",
        stage="gradients",
        replacement=one_tensor_scaled,
        what="One trained tensor of all has a gradient that is a thousandth too large.",
        imitates=("A51",),
        signature="loss exact, one tensor off by one ratio",
        invisible_where=_FORWARD + "; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="factor-b-doubled",
        stage="gradients",
        replacement=factor_b_doubled,
        what="The gradients of all B factors are counted twice.",
        trains=("lora",),
        signature="loss exact, half of all tensors off by a factor of 2",
        invisible_where=_FORWARD,
    ),
)

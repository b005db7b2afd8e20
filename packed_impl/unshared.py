"""The step that packing has to beat: every completion behind its own copy of the prompt, and nothing else in its way.

It differs from a packed step in its rows alone. Log-probs, objective and frozen policy are computed by the same code,
so that a difference in cost is one of layout. Rows are padded on the right: what lies behind a sequence is seen by none
of its tokens, so that causal attention needs no mask, and fused kernels run.

The pair (``a b``; ``c``, ``d e``), a dot for padding::

    padded              a b c .      one forward call
                        a b d e
    row-per-sequence    a b c        a forward call for each row, no padding
                        a b d e

Shape letters: B rows, T slots of a row, C completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import Tensor, nn

from packed_impl.adapters import adapters_off
from packed_impl.attention import attention_implementation
from packed_impl.forward import check_gradients
from packed_impl.groups import Group, Image, Mask, TokenIds, check_groups, check_negatives, completions
from packed_impl.layout import PackedLayout, pack
from packed_impl.logps import DEFAULT_LOGIT_CHUNK, completion_logps
from packed_impl.preference import PreferenceObjective
from packed_impl.step import PackedLoss, packed_loss

UNSHARED_ROWS = ("padded", "row-per-sequence")

_CAUSAL = "dense-sdpa"
"""transformers' SDPA, which is causal where it is given no mask."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One completion behind its own copy of the prompt, as a group of its own."""

    prompt_ids: TokenIds
    positives: tuple[TokenIds, ...]
    completion_masks: tuple[Mask, ...]
    negatives: tuple[TokenIds, ...] = ()
    images: tuple[Image, ...] = ()


def unshared_layouts(groups: Sequence[Group], rows: str) -> list[PackedLayout]:
    """The rows of each forward call.

    Args:
        groups: The preference groups; prompts of text alone.
        rows: One of ``UNSHARED_ROWS``.

    Returns:
        One layout for each call, completions in the standard order; positions count on through the padding.

    Raises:
        ValueError: Unknown ``rows``, images, or groups that cannot be laid out.
    """
    if rows not in UNSHARED_ROWS:
        raise ValueError(f"unknown rows {rows!r}: expected one of {', '.join(UNSHARED_ROWS)}")
    check_groups(groups)
    index = next((i for i, group in enumerate(groups) if group.images), None)
    if index is not None:
        raise ValueError(f"group {index} has images: unshared rows are of text alone")
    sequences = [
        _Sequence(group.prompt_ids, (completion,), (mask,) if mask else ())
        for group in groups
        for completion, mask in zip_longest(completions(group), group.completion_masks, fillvalue=())
    ]
    calls = [sequences] if rows == "padded" else [[sequence] for sequence in sequences]
    return [_counted_on(pack(call, layout="block-diagonal", rows="row-per-group")) for call in calls]


def _counted_on(layout: PackedLayout) -> PackedLayout:
    """Positions 0, 1, 2, ... of every row: padding that began anew would be taken for another packed sequence."""
    return replace(layout, position_ids=torch.arange(layout.input_ids.shape[1]).expand_as(layout.input_ids))


def unshared_logps(
    model: nn.Module, layouts: Sequence[PackedLayout], *, logit_chunk: int = DEFAULT_LOGIT_CHUNK
) -> list[Tensor]:
    """Log-probs of the tokens of every completion, from rows of one sequence each.

    Args:
        model: The causal LM, wrapped or not.
        layouts: Those of `unshared_layouts`.
        logit_chunk: Number of completion tokens of a call whose logits exist at one time.

    Returns:
        One 1-D tensor per completion, in the standard order, as of a packed step.

    Raises:
        ValueError: As `logps.completion_logps`, or gradient checkpointing under another attention than SDPA.
    """
    check_gradients(model, _CAUSAL)
    logps: list[Tensor] = []
    with attention_implementation(model, _CAUSAL):
        for layout in layouts:
            logps_C = completion_logps(model, layout, {"attention_mask": None}, logit_chunk=logit_chunk)
            logps += torch.split(logps_C, list(layout.completion_lengths))
    return logps


def unshared_loss(
    model: nn.Module,
    groups: Sequence[Group],
    *,
    rows: str,
    beta: float,
    label_smoothing: float = 0.0,
    objective: str = "sigmoid",
    nll_weight: float | None = None,
    logit_chunk: int = DEFAULT_LOGIT_CHUNK,
) -> PackedLoss:
    """The loss of a batch under a preference objective, over the model with its adapters off, computed unpacked.

    Args:
        model: The causal LM with adapters.
        groups: Groups with at least one positive and one negative each.
        rows: One of ``UNSHARED_ROWS``.
        beta: Scale of the rewards.
        label_smoothing: As in `step.dpo_loss`.
        objective: As there.
        nll_weight: As there.
        logit_chunk: As there.

    Returns:
        The loss and its parts.

    Raises:
        ValueError: As `unshared_layouts`, `unshared_logps` and `PreferenceObjective`, or a model without adapters.
    """
    preference = PreferenceObjective(objective, beta, label_smoothing, nll_weight)
    check_negatives(groups, objective)
    layouts = unshared_layouts(groups, rows)
    with adapters_off(model):
        ref = unshared_logps(model, layouts, logit_chunk=logit_chunk)
    policy = unshared_logps(model, layouts, logit_chunk=logit_chunk)
    return packed_loss(policy, ref, torch.cat([layout.supervised for layout in layouts]), preference, groups)

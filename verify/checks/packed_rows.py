"""The rows that a subject feeds, where it shows them: ``packed_rows(groups)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.checks.block_table import effective_mask
from verify.groups import PreferenceGroup
from verify.subject import SubjectError


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Packed rows and where their completion tokens are. Shape letters: B rows, T slots, N supervised tokens.

    Args:
        input_ids: int64, [B, T].
        position_ids: [B, T].
        attended: Which slot attends to which: bool, [B, T query, T key], or a FlexAttention ``BlockMask``.
        supervised: Completion, row, slot and predictor slot of every token that enters a sum; int64, [N, 4].
    """

    input_ids: Tensor
    position_ids: Tensor
    attended: Any
    supervised: Tensor


def check_packed_rows(rows: Any, groups: Sequence[PreferenceGroup], *, subject: str) -> PackedRows:
    """Check what a subject's ``packed_rows`` returned; values are not looked at.

    Args:
        rows: Any object with the attributes of :class:`PackedRows`.
        groups: The groups that it was given.
        subject: Name for messages.

    Returns:
        The same on the CPU, ``attended`` as bool [B, T, T].

    Raises:
        SubjectError: A part is missing, has the wrong shape or points outside the rows.
    """
    where = f"subject {subject}: packed_rows(...)"
    for name in ("input_ids", "position_ids", "supervised"):
        if not isinstance(getattr(rows, name, None), Tensor):
            raise SubjectError(f"{where}.{name} is {type(getattr(rows, name, None)).__name__}; a tensor is needed")
    ids, positions, supervised = (t.detach().cpu() for t in (rows.input_ids, rows.position_ids, rows.supervised))
    if ids.dim() != 2 or positions.shape != ids.shape:
        raise SubjectError(
            f"{where}: input_ids {tuple(ids.shape)}, position_ids {tuple(positions.shape)}; both are [rows, slots]"
        )
    attended = _attended(getattr(rows, "attended", None), where)
    if attended.shape != (*ids.shape, ids.shape[1]):
        raise SubjectError(f"{where}.attended: {tuple(attended.shape)}; [rows, slots, slots] is needed")
    if supervised.dim() != 2 or supervised.shape[1] != 4:
        raise SubjectError(f"{where}.supervised: {tuple(supervised.shape)}; [tokens, 4] is needed")
    limits = torch.tensor([sum(len(group.completions) for group in groups), len(ids), ids.shape[1], ids.shape[1]])
    if bool(((supervised < 0) | (supervised >= limits)).any()):
        raise SubjectError(f"{where}.supervised: a completion, row or slot that is not there")
    return PackedRows(ids, positions, attended, supervised)


def _attended(attended: Any, where: str) -> Tensor:
    if hasattr(attended, "kv_num_blocks"):
        return effective_mask(attended)
    if not isinstance(attended, Tensor) or attended.dtype != torch.bool:
        raise SubjectError(f"{where}.attended is {type(attended).__name__}; a bool tensor or a BlockMask is needed")
    return attended.detach().cpu()

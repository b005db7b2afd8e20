"""Faults of the reference pass: what stands for the frozen policy.

Shape letters: N targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from verify.faults.conditions import BRANCH_OF_TWO, SEVERAL_GROUPS
from verify.faults.fault import PREFERENCES, ROUNDING_IN_BFLOAT16, Fault
from verify.faults.rows import Piece, Rows, padded
from verify.faults.stages import Forward, Reference


def _lengths(rows: Rows) -> list[int]:
    return [len(branch.tokens) for branch in rows.branches()]


def adapters_on(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """The policy itself."""
    with torch.no_grad():
        return forward(rows, {})


def one_adapter_on(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """All adapters off but one, which does not honour the switch."""
    factors = [(name, p) for name, p in model.named_parameters() if ".lora_B." in name]
    off = {name: torch.zeros_like(p) for name, p in factors[1:]}
    with torch.no_grad():
        return forward(rows, off)


def zero(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """No reference at all."""
    return torch.zeros_like(honest(model, forward, rows))


def in_half_precision(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """Log-probs kept in float16."""
    logps = honest(model, forward, rows)
    return logps.to(torch.float16).to(logps.dtype)


def _of_other(honest: Reference, model: Any, forward: Forward, rows: Rows, other: Callable[[int, int], int]) -> Tensor:
    """Values of another completion, repeated or cut to the length of this one."""
    lengths = _lengths(rows)
    values = torch.split(honest(model, forward, rows), lengths)
    parts = []
    for index, length in enumerate(lengths):
        taken = values[other(index, len(lengths))]
        parts.append(taken.repeat(-(-length // len(taken)))[:length])
    return torch.cat(parts)


def _next_group(index: int, count: int) -> int:
    return (index + 2) % count


def _same_pair(index: int, count: int) -> int:
    return index ^ 1


def of_next_group(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """A cache filled in one order and read in another."""
    return _of_other(honest, model, forward, rows, _next_group)


def of_other_response(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """Chosen and rejected reference columns exchanged."""
    return _of_other(honest, model, forward, rows, _same_pair)


def tail_weighted_down(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """Later tokens weigh less, in the reference only."""
    logps = honest(model, forward, rows)
    weights = torch.cat([torch.linspace(1.0, 0.5, length) for length in _lengths(rows)])
    return logps * weights.to(logps)


def in_unpacked_rows(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """Only the policy pass is packed."""
    unpacked = []
    for branch in rows.branches():
        prompt = tuple(token for piece in rows.ancestors_of(branch) for token in piece.piece.ids)
        unpacked.append([Piece(prompt, None), replace(branch.piece, parent=0)])
    return honest(model, forward, padded(unpacked))


def noisy(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """Dropout was active in the reference pass."""
    logps = honest(model, forward, rows)
    noise = torch.randn(len(logps), generator=torch.Generator().manual_seed(0))
    return logps + 0.01 * noise.to(logps)


FAULTS = (
    Fault(
        name="reference-with-adapters-on",
        stage="reference",
        replacement=adapters_on,
        what="The reference pass runs with the adapters switched on.",
        imitates=("A47",),
        kinds=PREFERENCES,
        signature="reference log-probs are those of the policy; all rewards 0, the loss ln 2",
        invisible_where="adapters at initialisation",
    ),
    Fault(
        name="one-adapter-stays-on",
        stage="reference",
        replacement=one_adapter_on,
        what="One module does not honour the switch that turns adapters off.",
        trains=("lora",),
        imitates=("A47",),
        signature="policy exact, all reference log-probs off",
        invisible_where="adapters at initialisation",
    ),
    Fault(
        name="reference-zero",
        stage="reference",
        replacement=zero,
        what="The reference pass was not run: its log-probs are 0.",
        imitates=("A46",),
        signature="policy exact, reference 0",
    ),
    Fault(
        name="reference-in-half-precision",
        stage="reference",
        replacement=in_half_precision,
        what="Reference log-probs are kept in float16.",
        imitates=("A42",),
        signature="policy exact; reference off by 0.05 %, both signs, no structure",
        invisible_where="bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="reference-of-next-group",
        stage="reference",
        replacement=of_next_group,
        what="Cached reference log-probs are read in another order than they were written.",
        imitates=("A43",),
        bites_where=SEVERAL_GROUPS,
        signature="policy exact; reference values belong to another pair",
        invisible_where="one group",
    ),
    Fault(
        name="reference-of-other-response",
        stage="reference",
        replacement=of_other_response,
        what="Chosen and rejected columns of the reference cache are exchanged.",
        imitates=("A43", "A88"),
        signature="policy exact; reference values belong to the other response",
    ),
    Fault(
        name="reference-tail-weighted",
        stage="reference",
        replacement=tail_weighted_down,
        what="Reference sums weigh later tokens less, policy sums do not.",
        imitates=("A45",),
        bites_where=BRANCH_OF_TWO,
        signature="policy exact; reference off, more so towards the end of a response",
        invisible_where="responses of one token",
    ),
    Fault(
        name="reference-with-dropout",
        stage="reference",
        replacement=noisy,
        what="The reference pass ran in training mode: its log-probs carry noise of 0.01 nats.",
        imitates=("A44",),
        signature="policy exact; all reference log-probs off by noise without structure",
        invisible_where="dropout of 0; bfloat16",
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="reference-in-unpacked-rows",
        stage="reference",
        replacement=in_unpacked_rows,
        what="Only the policy pass is packed; the reference pass feeds padded rows of prompt and response.",
        imitates=("A41", "A79"),
        signature="no value is off; the reference pass feeds as many token slots as unpacked rows",
        invisible_where="values: they are those of the unpacked path",
        must_kill=("packed-ran",),
    ),
)

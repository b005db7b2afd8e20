"""Faults of what a subject keeps from one call to the next: exact until an optimizer moves the weights.

A replacement here is handed ``kept``, a dict that lasts as long as its subject. What it keeps is stored under the dtype
too, since one subject may be run in several. Only the policy pass is meddled with: of the frozen policy everything may
be kept. A kept value stands in for the new one going forward; the gradient is that of the new one.

Shape letters: N targets, K completions.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.activations import prompt_slots
from verify.faults.fault import PREFERENCES, EquivalentMutant, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Activations, Batch, Forward, Gradients, Mask, Objective, Reference, Terms
from verify.faults.two_pass import coefficients, with_coefficients
from verify.objective import Preference, Sft

Kept = dict[Hashable, Any]


def _first_seen(kept: Kept, key: Hashable, new: Tensor) -> Tensor:
    """What was seen first under a key, with the gradient of what is seen now."""
    first: Tensor = kept.setdefault((key, new.dtype), new.detach().clone())
    return new + (first - new).detach()


def adapters_merged_once(honest: Gradients, name: str, parameter: Tensor, rows: Rows, *, kept: Kept) -> Tensor:
    """Merged weights are made at the first call."""
    return _first_seen(kept, name, honest(name, parameter, rows))


def logits_kept(honest: Activations, rows: Rows, module: str, output: Tensor, *, kept: Kept) -> Tensor:
    """Logits are kept by the tokens of their rows."""
    if not module.endswith(".lm_head") or not torch.is_grad_enabled():
        return output
    return _first_seen(kept, rows, output)


def prompt_keys_kept(honest: Activations, rows: Rows, module: str, output: Tensor, *, kept: Kept) -> Tensor:
    """Keys and values of prompts are kept by the tokens of their rows."""
    if not module.endswith((".self_attn.k_proj", ".self_attn.v_proj")) or not torch.is_grad_enabled():
        return output
    return torch.where(prompt_slots(rows).to(output.device), _first_seen(kept, (module, rows), output), output)


def coefficients_kept(
    honest: Objective, sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Preference | Sft, *, kept: Kept
) -> Terms:
    """A group is replayed with the coefficients that it had when it was seen first."""
    terms = honest(sums, ref_sums, batch, objective)
    if not isinstance(objective, Preference) or not torch.is_grad_enabled():
        return terms
    by_sum = coefficients(honest, sums, ref_sums, batch, objective)
    key = (tuple(batch.groups), objective)
    return with_coefficients(kept.setdefault((key, by_sum.dtype), by_sum), terms, sums, batch)


def gradients_zeroed(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """The step begins with gradients set to zero, as if it were the first micro-batch."""
    for parameter in model.parameters():
        parameter.grad = None
    return honest(model, forward, rows)


def reference_kept(honest: Reference, model: Any, forward: Forward, rows: Rows, *, kept: Kept) -> Tensor:
    """Log-probs of the frozen policy are kept by the tokens of their rows."""
    key = (rows, next(model.parameters()).dtype)
    if key not in kept:
        kept[key] = honest(model, forward, rows)
    logps: Tensor = kept[key]
    return logps


def masks_kept(honest: Mask, rows: Rows, *, kept: Kept) -> Tensor:
    """Masks are kept by the lengths of segments and by what each continues."""
    key = tuple(tuple((len(piece.ids), piece.parent) for piece in row) for row in rows.rows)
    if key not in kept:
        kept[key] = honest(rows)
    mask: Tensor = kept[key]
    return mask


_ONLY_IT = "Caught by the exact check optimizer-steps only"
_UNMOVED = "everything, as long as no weight moves"

FAULTS = (
    Fault(
        name="adapters-merged-once",
        stage="gradients",
        replacement=adapters_merged_once,
        remembers=True,
        what="The policy runs on merged weights that are made once, at the first call.",
        kinds=CASE_KINDS,
        signature=f"exact at the first weights; later log-probs and gradients are those of the first. {_ONLY_IT}",
        invisible_where=_UNMOVED,
        must_kill=("optimizer-steps",),
    ),
    Fault(
        name="logits-kept-by-text",
        stage="activations",
        replacement=logits_kept,
        remembers=True,
        what="Logits of a row that was seen before are those of then.",
        kinds=CASE_KINDS,
        signature=f"exact where rows are new; loss and coefficients of rows that come again are stale. {_ONLY_IT}",
        invisible_where=f"{_UNMOVED}; rows that never come again",
        must_kill=("optimizer-steps",),
    ),
    Fault(
        name="keys-and-values-of-prompts-kept",
        stage="activations",
        replacement=prompt_keys_kept,
        remembers=True,
        what="Keys and values of a prompt in a row that was seen before are those of then.",
        kinds=PREFERENCES,
        signature=f"exact where rows are new; log-probs and gradients of rows that come again are stale. {_ONLY_IT}",
        invisible_where=f"{_UNMOVED}; rows that never come again",
        must_kill=("optimizer-steps",),
    ),
    Fault(
        name="coefficients-kept-by-text",
        stage="objective",
        replacement=coefficients_kept,
        remembers=True,
        what="Groups that were seen before are replayed with the coefficients of then.",
        kinds=PREFERENCES,
        signature=f"every forward quantity exact; gradients of groups that come again too large. {_ONLY_IT}",
        invisible_where=f"forward quantities; {_UNMOVED}",
        must_kill=("optimizer-steps",),
    ),
    Fault(
        name="gradients-zeroed-by-each-micro-batch",
        stage="reference",
        replacement=gradients_zeroed,
        what="Each call sets the gradients to zero, though those of micro-batches before it are to be added to.",
        kinds=PREFERENCES,
        signature=f"exact in a step of one micro-batch, else only the last one is learned. {_ONLY_IT}",
        invisible_where="steps of one micro-batch",
        must_kill=("optimizer-steps",),
    ),
)

MUTANTS = (
    EquivalentMutant(
        name="reference-kept-by-text",
        stage="reference",
        replacement=reference_kept,
        remembers=True,
        what="Log-probs of the frozen policy of a row that was seen before are those of then.",
        kinds=PREFERENCES,
        why_equal="the frozen policy never moves",
    ),
    EquivalentMutant(
        name="masks-kept-by-lengths",
        stage="mask",
        replacement=masks_kept,
        remembers=True,
        what="The mask of rows that are divided as others before them is that of then.",
        kinds=CASE_KINDS,
        why_equal="a mask is made of lengths and parents, and of nothing else",
    ),
)

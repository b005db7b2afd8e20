"""Faults that show in training mode alone: under gradient checkpointing, or with dropout.

Shape letters: B rows, T slots, D features.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.fault import PREFERENCES, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Activations, Forward, Reference

_DROPOUT = ".lora_dropout.default"
_SOME = 0.1
"""Part of the features; underflow takes fewer, dropout more."""


def attention_gone(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """Outside of its passes the step leaves the model with attention that takes the mask for scores."""
    wrapped = getattr(model, "get_base_model", None)
    (model if wrapped is None else wrapped()).set_attn_implementation("eager")
    return honest(model, forward, rows)


def evaluation_left_on(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """The frozen policy is run in evaluation mode, which is not left again."""
    model.eval()
    return honest(model, forward, rows)


def mask_of_first_slot_too(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """A feature that dropout took from the first slot of a row is taken from all; without dropout hardly any is 0."""
    if not module.endswith(_DROPOUT):
        return output
    dropped = output[:, :1] == 0
    return output.masked_fill(dropped, 0.0) if dropped.float().mean() > _SOME else output


FAULTS = (
    Fault(
        name="attention-gone-when-layers-run-again",
        stage="reference",
        replacement=attention_gone,
        what="Behind the forward pass the model has another attention implementation, which adds masks to scores.",
        kinds=PREFERENCES,
        signature="exact; where layers run again, gradients of another function. Caught by gradient-checkpointing only",
        invisible_where="everything, unless layers are run again in the backward pass",
        must_kill=("gradient-checkpointing",),
    ),
    Fault(
        name="evaluation-mode-left-on",
        stage="reference",
        replacement=evaluation_left_on,
        what="The reference pass sets the model to evaluation mode, and the policy pass runs in it.",
        kinds=PREFERENCES,
        signature="exact; with dropout the policy is trained without any. Caught by dropout only",
        invisible_where="everything, unless there is dropout",
        trains=("lora",),
        must_kill=("dropout",),
    ),
    Fault(
        name="dropout-of-the-first-slot-in-all",
        stage="activations",
        replacement=mask_of_first_slot_too,
        what="Features that dropout takes from the first slot of a row are taken from all of its slots.",
        kinds=CASE_KINDS,
        signature="exact; with dropout too much is dropped. Caught by dropout only",
        invisible_where="everything, unless there is dropout",
        trains=("lora",),
        must_kill=("dropout",),
    ),
)

"""LoRA tensors of a model as values: read, written in place, and put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from verify.subject import SubjectError

Weights = Mapping[str, Tensor]
"""Tensors in the model's dtype, on its device, by the names of ``model.named_parameters()``."""


def read_weights(model: Any) -> dict[str, Tensor]:
    """Copies of the parameters that require grad.

    Args:
        model: The model.

    Returns:
        A tensor of its own for each of them.
    """
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def write_weights(model: Any, weights: Weights) -> None:
    """Write values into parameters, as an optimizer does: in place, the parameters stay the same objects.

    Args:
        model: The model.
        weights: The values.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])


@contextmanager
def weights_kept(model: Any, weights: Weights | None = None) -> Iterator[None]:
    """Let the LoRA tensors of a model be changed; on leaving, they have the bits that they had.

    Args:
        model: The model.
        weights: What they are; read here if None, of the parameters that require grad now.

    Yields:
        Nothing.
    """
    before = read_weights(model) if weights is None else weights
    try:
        yield
    finally:
        write_weights(model, before)


def check_unchanged(model: Any, weights: Weights, subject: str) -> None:
    """Hold LoRA tensors to what was written into them.

    Args:
        model: The model.
        weights: What was written.
        subject: Who ran since, for the message.

    Raises:
        SubjectError: Naming the first tensor that is another one now.
    """
    now = dict(model.named_parameters())
    for name, weight in weights.items():
        if name not in now or not torch.equal(now[name].detach(), weight):
            raise SubjectError(f"subject {subject} changed {name}, which is for the optimizer to do")

"""Guard around a subject's work: the model must come back as it was.

A subject that leaves weights, mode or attention implementation changed would be judged right itself and spoil the
subject after it. Weights cannot be put back, so a change is an error; settings are put back and named.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from verify.model_settings import Settings


class WeightsChangedError(Exception):
    """A subject changed a parameter or buffer of the model."""


@dataclass(slots=True)
class Restored:
    """Settings that a subject left changed and that were put back."""

    settings: list[str] = field(default_factory=list)


def weights_hash(model: nn.Module) -> dict[str, int]:
    """Hash of the bits of every parameter and buffer.

    Args:
        model: Any module.

    Returns:
        Name to a 64-bit hash of the tensor's bits.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: _hash_bits(tensor.detach()) for name, tensor in named}


def _hash_bits(tensor: Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return int(torch.hash_tensor(tensor).item())


@contextmanager
def restored_model(model: Any, subject: str, *, seed: int) -> Iterator[Restored]:
    """Run a subject's work with seeded random numbers, and hold the model to what it was.

    Args:
        model: The (PEFT-wrapped) causal LM.
        subject: Name for messages.
        seed: Seed of torch's generator inside; the state outside is put back.

    Yields:
        The settings that had to be put back; filled when the context closes.

    Raises:
        WeightsChangedError: A parameter or buffer changed, appeared or vanished.
    """
    hashes, before, restored = weights_hash(model), Settings.read(model), Restored()
    for parameter in model.parameters():
        parameter.grad = None
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield restored
    finally:
        for parameter in model.parameters():
            parameter.grad = None
        restored.settings += before.put_back(model)
        after = weights_hash(model)
        if after != hashes:
            changed = sorted(n for n in hashes.keys() | after.keys() if hashes.get(n) != after.get(n))
            raise WeightsChangedError(
                f"subject {subject} changed the model: {', '.join(changed[:3])}"
                + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            )

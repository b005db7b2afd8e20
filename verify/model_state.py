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


class WeightsChangedError(Exception):
    """A subject changed a parameter or buffer of the model."""


@dataclass(slots=True)
class Restored:
    """Settings that a subject left changed and that were put back."""

    settings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Settings:
    attention: str
    training: tuple[tuple[str, bool], ...]
    requires_grad: tuple[tuple[str, bool], ...]
    default_dtype: torch.dtype
    grad_enabled: bool


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
    hashes, before, restored = weights_hash(model), _settings(model), Restored()
    for parameter in model.parameters():
        parameter.grad = None
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield restored
    finally:
        for parameter in model.parameters():
            parameter.grad = None
        restored.settings += _put_back(model, before)
        after = weights_hash(model)
        if after != hashes:
            changed = sorted(n for n in hashes.keys() | after.keys() if hashes.get(n) != after.get(n))
            raise WeightsChangedError(
                f"subject {subject} changed the model: {', '.join(changed[:3])}"
                + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            )


def _settings(model: Any) -> _Settings:
    return _Settings(
        attention=str(model.config._attn_implementation),
        training=tuple((name, module.training) for name, module in model.named_modules()),
        requires_grad=tuple((name, parameter.requires_grad) for name, parameter in model.named_parameters()),
        default_dtype=torch.get_default_dtype(),
        grad_enabled=torch.is_grad_enabled(),
    )


def _put_back(model: Any, before: _Settings) -> list[str]:
    changed = []
    if str(model.config._attn_implementation) != before.attention:
        changed.append(f"attention implementation {model.config._attn_implementation} (was {before.attention})")
        model.set_attn_implementation(before.attention)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    modes = [name for name, training in before.training if name in modules and modules[name].training != training]
    for name, training in before.training:
        if name in modules:
            modules[name].training = training
    if modes:
        changed.append(f"training mode of {len(modes)} modules")
    flags = [n for n, flag in before.requires_grad if n in parameters and parameters[n].requires_grad != flag]
    for name, flag in before.requires_grad:
        if name in parameters:
            parameters[name].requires_grad_(flag)
    if flags:
        changed.append(f"requires_grad of {len(flags)} parameters")
    if torch.get_default_dtype() != before.default_dtype:
        changed.append(f"default dtype {torch.get_default_dtype()} (was {before.default_dtype})")
        torch.set_default_dtype(before.default_dtype)
    if torch.is_grad_enabled() != before.grad_enabled:
        changed.append("grad mode")
        torch.set_grad_enabled(before.grad_enabled)
    return changed

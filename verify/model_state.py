"""Guard around a subject's work: the model must come back as it was.

A subject that leaves weights, mode or attention implementation changed would be judged right itself and spoil the
subject after it. Weights cannot be put back, so a change is an error; settings are put back and named.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as compiled

from verify.model_settings import Settings
from verify.module_walk import NamedModules, named_modules, named_parameters

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_KNOWN_TO_NUMPY = (torch.float32, torch.float64)
_CHUNK = 1 << 24
_GOLDEN_RATIO = 0x9E3779B97F4A7C15 - 2**64
_BETWEEN_CHUNKS = 1_000_003


class WeightsChangedError(Exception):
    """A subject changed a parameter or buffer of the model."""


@dataclass(slots=True)
class Restored:
    """Settings that a subject left changed and that were put back."""

    settings: list[str] = field(default_factory=list)


def weights_hash(modules: NamedModules) -> dict[str, int]:
    """Hash of the bits of every parameter and buffer.

    Args:
        modules: The named modules of the model.

    Returns:
        Name to a hash of the tensor's bits that depends on their places: values that only swap places or signs count
        as changed. (torch.hash_tensor XORs all elements and sees neither.)
    """
    return {
        f"{prefix}.{name}".lstrip("."): _hash_bits(tensor.detach().contiguous())
        for prefix, module in modules
        for named in (module._parameters, module._buffers)
        for name, tensor in named.items()
        if tensor is not None
    }


def _hash_bits(values: Tensor) -> int:
    if values.device.type != "cpu":
        return mixed_sum(values.reshape(-1))
    known_to_numpy = values.dtype in _KNOWN_TO_NUMPY  # most of all: what can be had without a view
    return zlib.crc32((values if known_to_numpy else values.reshape(-1).view(torch.uint8)).numpy().data)


def mixed_sum(values: Tensor) -> int:
    """Sum of the mixed bits of all elements, each times an odd number that belongs to its place; modulo 2^64.

    Stays on the device of the tensor.

    Args:
        values: 1-D tensor of any dtype of 1, 2, 4 or 8 bytes.

    Returns:
        The sum, in [0, 2^64).
    """
    total = 0
    for chunk in values.view(_SIGNED[values.element_size()]).split(_CHUNK):  # type: ignore[no-untyped-call]
        factors = torch.arange(chunk.numel(), device=chunk.device) * _GOLDEN_RATIO | 1
        bits = chunk.to(torch.int64)
        mixed = bits ^ ((bits >> 32) & 0xFFFFFFFF)  # else 2^63 times odd factors would cancel: the signs of float64
        total = (total * _BETWEEN_CHUNKS + int((mixed * factors).sum())) % 2**64
    return total


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a model is before any subject works on it; good until its weights change."""

    hashes: dict[str, int]
    settings: Settings

    @staticmethod
    def read(model: Any) -> Baseline:
        """Read weights and settings. The tree is walked once: on a small model the walk costs as much as a pass."""
        modules = named_modules(model)
        return Baseline(weights_hash(modules), Settings.read(model, modules))


def _drop_gradients(modules: NamedModules) -> None:
    for _, parameter in named_parameters(modules):
        parameter.grad = None


def seed_torch(seed: int) -> None:
    """Seed torch's random numbers on the CPU and on every device in use.

    ``torch.manual_seed`` also leaves a note for each device that is not, with a formatted stack: it takes as long as a
    short pass of a tiny model.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def _buffers_kept() -> Iterator[None]:
    """What is compiled within keeps its buffers behind a backward pass: some checks make several over one graph."""
    before = compiled.donated_buffer
    compiled.donated_buffer = False
    try:
        yield
    finally:
        compiled.donated_buffer = before


@contextmanager
def restored_model(model: Any, subject: str, *, seed: int, baseline: Baseline | None = None) -> Iterator[Restored]:
    """Run a subject's work with seeded random numbers, and hold the model to what it was.

    Args:
        model: The (PEFT-wrapped) causal LM.
        subject: Name for messages.
        seed: Seed of torch's generator inside; the state outside is put back.
        baseline: What the model must be afterwards; read here if None.

    Yields:
        The settings that had to be put back; filled when the context closes.

    Raises:
        WeightsChangedError: A parameter or buffer changed, appeared or vanished.
    """
    restored = Restored()
    if baseline is None:
        _drop_gradients(named_modules(model))  # with a baseline, those of the work before were dropped after it
        baseline = Baseline.read(model)
    try:
        with torch.random.fork_rng(), _buffers_kept():
            seed_torch(seed)
            yield restored
    finally:
        modules = named_modules(model)
        _drop_gradients(modules)
        restored.settings += baseline.settings.put_back(model, modules)
        after = weights_hash(modules)
        if after != baseline.hashes:
            names = baseline.hashes.keys() | after.keys()
            changed = sorted(name for name in names if baseline.hashes.get(name) != after.get(name))
            raise WeightsChangedError(
                f"subject {subject} changed the model: {', '.join(changed[:3])}"
                + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            )

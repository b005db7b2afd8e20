"""Harmless properties of kernels: they hit unpacked and packed passes alike, and must be taken for noise.

Not a mutation of the packed step, which the unpacked passes would know nothing of: it is planted in the model, before
anything runs. The noise floor then has to measure it, honest steps have to pass in it, and faults have to be caught in
spite of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

JITTER = 1e-4
"""Of the RMS of a gradient: what atomic additions were reported to change from run to run (A59)."""

_SEED = 59


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyKernel:
    """A property of the kernels that all passes of a run go through.

    Args:
        name: Stable id.
        plant: Changes a model that was just built, for good.
        what: What is different, in one sentence.
        imitates: Entries of the public list in docs/faults.md.
        why_harmless: Why nobody may raise an alarm.
        planted: Names of the mutations that are run in it: controls, to be left alone, and faults, to be caught.
    """

    name: str
    plant: Callable[[Any], None] = field(repr=False)
    what: str
    imitates: tuple[str, ...]
    why_harmless: str
    planted: tuple[str, ...]


def jitter_query_gradients(model: Any) -> None:
    """Add noise to the gradient of every query projection's output, another one in each pass.

    Args:
        model: Its hooks stay; forward passes keep their bits.
    """
    generator = torch.Generator().manual_seed(_SEED)
    for name, module in model.named_modules():
        if name.endswith(".q_proj"):
            module.register_forward_hook(partial(_on_output, generator))


def _on_output(generator: torch.Generator, module: nn.Module, inputs: object, output: Tensor) -> None:
    if output.requires_grad:
        output.register_hook(partial(_with_jitter, generator))  # type: ignore[no-untyped-call]


def _with_jitter(generator: torch.Generator, gradient: Tensor) -> Tensor:
    noise = torch.randn(gradient.shape, generator=generator, dtype=torch.float64).to(gradient.device)
    wide = gradient.double()
    return (wide + JITTER * wide.square().mean().sqrt() * noise).to(gradient.dtype)


NOISY_KERNELS: tuple[NoisyKernel, ...] = (
    NoisyKernel(
        name="jittery-query-gradients",
        plant=jitter_query_gradients,
        what=f"Query gradients differ from run to run, by {JITTER:.0e} of their size, packed and unpacked.",
        imitates=("A59",),
        why_harmless="the order of atomic additions: a repeat of the same pass differs as much",
        planted=(
            "nothing-replaced",
            "prompt-in-two-segments",
            "causal-mask-only",
            "prompt-gradient-averaged",
            "gradient-slice-stale",
            "coefficients-permuted",
        ),
    ),
)

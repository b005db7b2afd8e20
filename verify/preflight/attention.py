"""Which attention backends really run on this device for the model's heads, forward and backward, and rightly.

A row of one prompt and two responses goes through the backend's kernel, compiled where training compiles it; the same
queries, keys and values go sequence by sequence through the oracle's attention in float64. The kernel may be as far
from that as unpacked attention in the same dtype is, times the factor of the tolerance policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from reports.words import number
from verify.models.lora import rounded_normal
from verify.preflight.finding import Finding, abstains, go, no_go
from verify.preflight.machine import synchronise
from verify.subject import said_by
from verify.subjects.kernel_attention import KERNEL_BACKENDS, backend_attention, backward_support
from verify.subjects.oracle_attention import sequence_attention
from verify.tolerance import Policy

PROBE = "attention"
ROWS: tuple[tuple[int, ...], ...] = ((130, 61, 67), (127, 1, 129))
"""Lengths of prompt and responses: around the block size, and two shapes, since a compiled kernel may know but one."""
_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
_NO_FUSED_KERNEL = "No available kernel"
_HINT_WRONG = "do not train with this backend here: run packparity check --device cuda, and report it"

Attention: TypeAlias = Callable[[Sequence[int], Tensor, Tensor, Tensor], Tensor]
"""From lengths, queries, keys and values of a packed row to mixed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes:
    """Heads of the model's attention."""

    num_heads: int
    num_key_heads: int
    head_dim: int

    def describe(self) -> str:
        """E.g. "head_dim 128, 32 heads over 8"."""
        return f"head_dim {self.head_dim}, {self.num_heads} heads over {self.num_key_heads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What attention is computed in, and on.

    Args:
        sizes: Heads.
        dtype: The dtype.
        device: The torch device.
        policy: How far from the oracle is too far.
        seed: Seed of queries, keys and values.
    """

    sizes: AttentionSizes
    dtype: torch.dtype
    device: str
    policy: Policy
    seed: int


def probe_attention(
    backend: str,
    target: Target,
    attend: Callable[..., Tensor] = backend_attention,
    rows: Sequence[Sequence[int]] = ROWS,
) -> Finding:
    """Run one backend forward and backward.

    Args:
        backend: One of ``packed_impl``'s backends.
        target: What to compute in, and on.
        attend: The attention of a backend; takes what ``backend_attention`` takes.
        rows: Lengths of prompt and responses of each row.

    Returns:
        GO: forward and backward are right, by a fused kernel. NO-GO: they are not. ABSTAINS: it does not run here, has
        no backward pass, or falls back to a kernel that writes all scores out.
    """
    if backend not in KERNEL_BACKENDS:
        return abstains(PROBE, "plain products of matrices: it has no kernel to look at", part=backend)
    sizes, kernel = target.sizes, _kernel(backend, target, attend)
    said = f"{sizes.describe()}, {str(target.dtype).removeprefix('torch.')} on {target.device}"
    support = backward_support(backend, target.device)
    try:
        with sdpa_kernel(_FUSED):
            measured = [_measure(kernel, row, target, backward=support.supported) for row in rows]
    except Exception as error:  # whatever a compiler or a driver raises
        reason = _why_not(error, kernel, rows[0], target, backward=support.supported)
        return abstains(PROBE, f"{reason} ({said})", part=backend)
    worst = max((ratio for of_row in measured for ratio in of_row.items()), key=lambda item: _order(item[1]))
    ratios = {f"{name}_error_over_budget": max((m[name] for m in measured), key=_order) for name in measured[0]}
    if not worst[1] <= 1:
        seen = f"wrong values: {worst[0]} is {number(worst[1])} times its budget away from the oracle ({said})"
        return no_go(PROBE, seen, _HINT_WRONG, part=backend, measures=ratios)
    if not support.supported:
        return abstains(PROBE, f"forward is right, but {support.reason} ({said})", part=backend)
    seen = f"forward and backward by a fused kernel, {said}; worst error / budget {number(worst[1])} ({worst[0]})"
    return go(PROBE, seen, part=backend, measures=ratios)


def _kernel(backend: str, target: Target, attend: Callable[..., Tensor]) -> Attention:
    scaling = target.sizes.head_dim**-0.5
    return lambda lengths, q, k, v: attend(backend, lengths, q, k, v, scaling=scaling)


def _why_not(error: Exception, kernel: Attention, row: Sequence[int], target: Target, *, backward: bool) -> str:
    """Why a backend did not run; whether it does with a kernel that is not fused."""
    if _NO_FUSED_KERNEL not in str(error):
        return f"it does not run here: {said_by(error)}"
    try:
        _measure(kernel, row, target, backward=backward)
    except Exception as other:  # whatever a driver raises
        return f"it does not run here: {said_by(other)}"
    return "no fused kernel takes it: it runs by one that writes all scores out"


def _order(ratio: float) -> float:
    """NaN is larger than all."""
    return ratio if ratio == ratio else float("inf")


def _measure(kernel: Attention, lengths: Sequence[int], target: Target, *, backward: bool) -> dict[str, float]:
    """Error / budget of output and gradients on one row."""
    inputs, cotangent = _draw(sum(lengths), target)
    packed = _outcome(kernel, lengths, inputs, cotangent, target.device, target.dtype, backward=backward)
    expected = _outcome(_by_sequence(sequence_attention), lengths, inputs, cotangent, "cpu", torch.float64)
    unpacked = [
        _outcome(_by_sequence(form), lengths, inputs, cotangent, target.device, target.dtype)
        for form in (sequence_attention, _sdpa)
    ]
    return {
        f"{name}_{statistic}": _ratio(
            packed[name], expected[name], [form[name] for form in unpacked], target, statistic
        )
        for name in packed
        for statistic in ("max", "rms")
    }


def _draw(num_slots: int, target: Target) -> tuple[list[Tensor], Tensor]:
    """Queries, keys, values, and what the output is weighted with; numbers that every dtype represents."""
    generator, sizes = torch.Generator().manual_seed(target.seed), target.sizes
    heads = (sizes.num_heads, sizes.num_key_heads, sizes.num_key_heads, sizes.num_heads)
    *inputs, cotangent = (
        rounded_normal(torch.Size((1, each, num_slots, sizes.head_dim)), 1.0, generator) for each in heads
    )
    return inputs, cotangent


def _outcome(
    attention: Attention,
    lengths: Sequence[int],
    inputs: Sequence[Tensor],
    cotangent: Tensor,
    device: str,
    dtype: torch.dtype,
    *,
    backward: bool = True,
) -> dict[str, Tensor]:
    """Output and gradients, as float64 on the CPU."""
    leaves = [x.to(device, dtype).requires_grad_(backward) for x in inputs]
    with torch.set_grad_enabled(backward):
        output = attention(lengths, *leaves)
    named = {"output": output}
    if backward:
        gradients = torch.autograd.grad(output, leaves, cotangent.to(device, dtype))
        named |= dict(zip(("query_gradient", "key_gradient", "value_gradient"), gradients, strict=True))
    synchronise(device)
    return {name: x.detach().to("cpu", torch.float64) for name, x in named.items()}


def _by_sequence(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Attention:
    """Attention of a packed row from that of single sequences: the prompt's, then each response's behind the prompt."""

    def attend(lengths: Sequence[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = [torch.split(x, list(lengths), dim=2) for x in (q, k, v)]
        outputs = [attention(*(part[0] for part in parts))]
        for index in range(1, len(lengths)):
            path = [torch.cat((part[0], part[index]), dim=2) for part in parts]
            outputs.append(attention(*path)[:, :, lengths[0] :])
        return torch.cat(outputs, dim=2)

    return attend


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
    return scaled_dot_product_attention(q, keys, values, is_causal=True)


def _ratio(actual: Tensor, expected: Tensor, unpacked: Sequence[Tensor], target: Target, statistic: str) -> float:
    """Error over budget: the policy's factor times the error of unpacked attention, and the floor of the dtype."""
    policy, epsilon = target.policy, torch.finfo(target.dtype).eps
    size_of: Mapping[str, Callable[[Tensor], Tensor]] = {
        "max": lambda x: x.abs().max(),
        "rms": lambda x: x.square().mean().sqrt(),
    }
    measure = size_of[statistic]
    noise = max(float(measure(form - expected)) for form in unpacked)
    budget = policy.oracle.factor * noise + policy.floor.epsilons * epsilon * float(measure(expected))
    return float(measure(actual - expected)) / budget

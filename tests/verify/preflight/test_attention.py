"""A kernel that is missing abstains, one that is wrong is NO-GO, and neither ever passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from verify.preflight.attention import AttentionSizes, Target, probe_attention
from verify.preflight.finding import Finding
from verify.subjects.kernel_attention import backend_attention
from verify.tolerance import load_policy

ROWS = ((9, 4, 5),)


def target(dtype: torch.dtype = torch.float32) -> Target:
    sizes = AttentionSizes(num_heads=4, num_key_heads=2, head_dim=16)
    return Target(sizes=sizes, dtype=dtype, device="cpu", policy=load_policy(None), seed=0)


def probe(attend: Any, backend: str = "split", dtype: torch.dtype = torch.float32) -> Finding:
    return probe_attention(backend, target(dtype), attend, ROWS)


@pytest.mark.parametrize("backend", ["dense-sdpa", "split"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_honest_kernels_are_go_forward_and_backward(backend: str, dtype: torch.dtype) -> None:
    found = probe(backend_attention, backend, dtype)
    assert found.outcome == "GO"
    assert {"output_max_error_over_budget", "key_gradient_rms_error_over_budget"} <= found.measures.keys()


def test_flex_abstains_where_it_has_no_backward_pass() -> None:
    found = probe(backend_attention, "flex")
    assert found.outcome == "ABSTAINS"
    assert "no backward pass on cpu" in found.seen


def test_a_backend_without_a_kernel_of_its_own_abstains() -> None:
    assert probe(backend_attention, "dense-eager").outcome == "ABSTAINS"


def test_a_kernel_that_does_not_compile_abstains_with_what_was_said() -> None:
    def attend(*args: Any, **kwargs: Any) -> Tensor:
        raise RuntimeError("ptxas fatal: Value 'sm_121a' is not defined for option 'gpu-name'")

    found = probe(attend)
    assert found.outcome == "ABSTAINS"
    assert "sm_121a" in found.seen


def test_a_fallback_to_a_kernel_that_is_not_fused_abstains() -> None:
    def attend(backend: str, lengths: Sequence[int], q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
        if not torch.backends.cuda.math_sdp_enabled():  # what torch does where only the math kernel takes a call
            raise RuntimeError("No available kernel. Aborting execution.")
        return backend_attention(backend, lengths, q, k, v, **kwargs)

    found = probe(attend)
    assert found.outcome == "ABSTAINS"
    assert "writes all scores out" in found.seen


def test_a_kernel_that_lets_branches_see_each_other_is_no_go() -> None:
    def leaking(backend: str, lengths: Sequence[int], q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
        return backend_attention(backend, (sum(lengths),), q, k, v, **kwargs)

    found = probe(leaking)
    assert found.outcome == "NO-GO"
    assert found.hint


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 1.01 * gradient


def test_a_kernel_whose_backward_alone_is_wrong_is_no_go() -> None:
    def attend(backend: str, lengths: Sequence[int], q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
        return backend_attention(backend, lengths, q, _WrongBackward.apply(k), v, **kwargs)

    found = probe(attend)
    assert found.outcome == "NO-GO"
    assert "key_gradient" in found.seen
    assert found.measures["output_max_error_over_budget"] <= 1


def test_values_that_are_not_numbers_are_no_go() -> None:
    def attend(backend: str, lengths: Sequence[int], q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
        return backend_attention(backend, lengths, q, k, v, **kwargs) * float("nan")

    assert probe(attend).outcome == "NO-GO"

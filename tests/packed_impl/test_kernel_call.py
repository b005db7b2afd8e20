from __future__ import annotations

import pytest
import torch

from packed_impl.kernel_call import as_under_autocast


def mixed() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As rotary positions leave them under autocast."""
    draw = torch.randn(3, 1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    return draw[0], draw[1], draw[2].to(torch.bfloat16)


def test_under_autocast_all_three_have_its_dtype_as_in_torchs_own_sdpa() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = as_under_autocast(*mixed())
        by_torch = torch.nn.functional.scaled_dot_product_attention(*mixed())
        ours = torch.nn.functional.scaled_dot_product_attention(*cast)
    assert {x.dtype for x in cast} == {torch.bfloat16}
    assert torch.equal(ours, by_torch)


def test_without_autocast_nothing_is_cast() -> None:
    given = mixed()
    assert all(one is other for one, other in zip(given, as_under_autocast(*given), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_flow_through_the_cast(dtype: torch.dtype) -> None:
    query, key, value = (x.float().requires_grad_() for x in mixed())
    with torch.autocast("cpu", dtype=dtype):
        sum(x.float().sum() for x in as_under_autocast(query, key, value)).backward()
    assert all(torch.equal(x.grad, torch.ones_like(x)) for x in (query, key, value) if x.grad is not None)
    assert query.grad is not None

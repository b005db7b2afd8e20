"""What operators are said to do, against counts by hand."""

from __future__ import annotations

import pytest
import torch

from verify.forecast.kernels import CudaKernels
from verify.forecast.operators import num_bytes
from verify.forecast.step_trace import StepTrace, Window
from verify.forecast.work import Operation


def traced(run: object, *arguments: torch.Tensor) -> Window:
    trace = StepTrace(torch.nn.Module())
    trace.open("policy")
    with trace:
        assert callable(run)
        run(*arguments)
    trace.close()
    (window,) = trace.windows
    return window


def test_a_product_reads_both_factors_and_writes_the_result() -> None:
    window = traced(torch.mm, torch.ones(3, 5), torch.ones(5, 7))
    assert window.work.operations == {Operation(flops=2 * 3 * 5 * 7, num_bytes=4 * (15 + 35 + 21)): 1}
    assert window.excess == 4 * 21


def test_views_move_nothing_and_an_embedding_reads_the_rows_that_it_returns() -> None:
    table, ids = torch.ones(1000, 8), torch.tensor([3, 4])
    assert traced(lambda: torch.nn.functional.embedding(ids, table).t()[1:]).work.num_bytes == 2 * (2 * 8 * 4) + 2 * 8


def test_lists_that_are_changed_in_place_are_read_and_written() -> None:
    changed, added = [torch.ones(6), torch.ones(2)], [torch.ones(6), torch.ones(2)]
    assert traced(lambda: torch._foreach_add_(changed, added)).work.num_bytes == 4 * 8 * 3


def test_what_is_expanded_is_read_once() -> None:
    assert num_bytes(torch.ones(1, 4).expand(100, 4)) == 16


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (3, 8)])
def test_a_causal_kernel_computes_the_pairs_up_to_the_diagonal(queries: int, keys: int) -> None:
    q, k = torch.ones(2, 4, queries, 8), torch.ones(2, 4, keys, 8)
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)

    def attend(causal: bool) -> Window:
        return traced(
            lambda: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, k, 0.0, causal, attn_mask=None if causal else torch.zeros(queries, keys)
            )
        )

    of_one_cell = 2 * 2 * 2 * 4 * 8  # two products, a multiply and an add, rows, heads, head dim
    assert attend(True).work.attention == of_one_cell * int(mask.sum())
    assert attend(True).work.attention_counted == attend(False).work.attention == of_one_cell * queries * keys


def test_a_dense_mask_of_a_gpu_is_kept_in_the_dtype_of_the_queries() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(2, 4, 20, 8, dtype=torch.bfloat16, requires_grad=True)
        mask = torch.empty(2, 1, 20, 20, dtype=torch.bool)
        trace = StepTrace(torch.nn.Module())
        trace.open("policy")
        with CudaKernels(), trace:
            output = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        trace.close()
    kept = sum(window.growth for window in trace.windows) - num_bytes(output)
    # Rows of 20 padded to 32, and one float32 statistic for each query, rows and heads rounded as the kernel does.
    assert 2 * 20 * 32 * 2 + 2 * 4 * 20 * 4 <= kept <= 2 * 20 * 32 * 2 + 2 * 4 * 32 * 4 + 64

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_impl.forest import Forest, attention_rule, padded
from packed_impl.split import plan_split_calls, split_attention_forward

CPU = torch.device("cpu")
MODULE = torch.nn.Identity()


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    parents = [draw(st.none() | st.integers(0, index - 1)) if index else None for index in range(len(lengths))]
    return Forest.of(lengths, parents)


def by_definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: list[Forest], scaling: float, window: int | None = None
) -> torch.Tensor:
    """Softmax over the masked score matrix, written out; [B, T, N, H]."""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = torch.einsum("bnqh,bnkh->bnqk", q, k) * scaling
    allowed = torch.stack([attention_rule(forest, window) for forest in rows])[:, None]
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return torch.einsum("bnqk,bnkh->bqnh", weights, v)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(forests(), min_size=1, max_size=3),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2**31),
    st.none() | st.integers(1, 9),
)
def test_split_attention_is_masked_attention(rows: list[Forest], key_heads: int, seed: int, window: int | None) -> None:
    longest = max(forest.num_slots for forest in rows)
    rows = [padded(forest, longest) for forest in rows]
    generator = torch.Generator().manual_seed(seed)

    def draw(heads: int) -> torch.Tensor:
        x = torch.randn(len(rows), heads, longest, 8, generator=generator, dtype=torch.float64)
        return x.requires_grad_()

    q, k, v = draw(4), draw(key_heads), draw(key_heads)
    actual, weights = split_attention_forward(
        MODULE,
        q,
        k,
        v,
        None,
        split_calls=plan_split_calls(rows, CPU, window=window),
        scaling=0.7,
        sliding_window=window,
    )
    expected = by_definition(q, k, v, rows, 0.7, window)
    assert weights is None
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    upstream = torch.randn(actual.shape, generator=generator, dtype=torch.float64)
    gradients = torch.autograd.grad(actual, (q, k, v), upstream)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, (q, k, v), upstream), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_only_the_cells_of_the_rule_and_one_triangle_per_branch_are_computed() -> None:
    forest = Forest.of([5, 2, 3], [None, 0, 0])
    (row,) = plan_split_calls([forest], CPU)
    shapes = [tuple(call.bias.shape) for call in row.calls if call.bias is not None]
    assert shapes == [(2, 7), (3, 8)]
    assert [call.path for call in row.calls] == [(0,), (0, 1), (0, 2)]


def test_a_segment_four_levels_down_sees_its_whole_path() -> None:
    (row,) = plan_split_calls([Forest.of([2, 1, 2, 3, 4], [None, 0, 1, 2, 1])], CPU)
    assert [call.path for call in row.calls] == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 4)]
    assert [tuple(call.bias.shape) for call in row.calls if call.bias is not None] == [(1, 3), (2, 5), (3, 8), (4, 7)]


def test_blocks_of_a_diagonal_need_square_calls_alone() -> None:
    (row,) = plan_split_calls([Forest.of([3, 2, 4], [None, None, None])], CPU)
    assert [(call.path, call.bias) for call in row.calls] == [((0,), None), ((1,), None), ((2,), None)]


def test_keys_out_of_the_windows_reach_are_left_out_of_the_call() -> None:
    (row,) = plan_split_calls([Forest.of([5, 2, 3, 1], [None, 0, 1, 2])], CPU, window=4)
    assert [(call.path, call.num_skipped) for call in row.calls] == [
        ((0,), 0),
        ((0, 1), 2),
        ((0, 1, 2), 4),
        ((2, 3), 0),
    ]
    assert [None if call.bias is None else tuple(call.bias.shape) for call in row.calls] == [
        (5, 5),
        (2, 5),
        (3, 6),
        (1, 4),
    ]


def test_a_window_longer_than_every_path_changes_no_call() -> None:
    forest = Forest.of([5, 2, 3], [None, 0, 1])
    (wide,), (plain,) = plan_split_calls([forest], CPU, window=10), plan_split_calls([forest], CPU)
    for ours, theirs in zip(wide.calls, plain.calls, strict=True):
        assert (ours.path, ours.num_skipped) == (theirs.path, 0)
        assert (ours.bias is None) == (theirs.bias is None)
        assert ours.bias is None or torch.equal(ours.bias, theirs.bias)
    (on_cuda,) = plan_split_calls([forest], torch.device("cuda"), window=10)
    assert [type(call.bias).__name__ for call in on_cuda.calls] == ["NoneType", "CausalBias", "CausalBias"]


def test_a_cuda_call_names_its_pattern_and_builds_no_mask() -> None:
    (row,) = plan_split_calls([Forest.of([5, 2], [None, 0])], torch.device("cuda"))
    assert type(row.calls[1].bias).__name__ == "CausalBias"


def test_masks_of_all_calls_of_all_rows_are_parts_of_one_in_the_dtype_of_the_queries() -> None:
    """SDPA makes a mask of numbers from one of booleans, in every call of every layer, and keeps it for backward."""
    rows = [Forest.of([5, 2, 4, 3], [None, 0, 0, 2]), Forest.of([2, 6, 6], [None, 0, 0])]
    calls = [call for row in plan_split_calls(rows, CPU, torch.bfloat16) for call in row.calls]
    masks = [call.bias for call in calls if call.bias is not None]
    assert len(masks) == 5
    assert {mask.dtype for mask in masks} == {torch.bfloat16}
    assert {mask.untyped_storage().data_ptr() for mask in masks} == {masks[0].untyped_storage().data_ptr()}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("dropout", 0.1),
        ("softcap", 50.0),
        ("s_aux", torch.ones(1)),
        ("position_bias", torch.ones(1)),
    ],
)
def test_a_variant_that_is_not_computed_is_refused(setting: str, value: object) -> None:
    x = torch.zeros(1, 1, 2, 8)
    plan = plan_split_calls([Forest.of([2], [None])], CPU)
    with pytest.raises(ValueError, match=f"does not compute {setting}"):
        split_attention_forward(MODULE, x, x, x, None, split_calls=plan, scaling=1.0, **{setting: value})


def test_a_mask_beside_the_plan_is_refused() -> None:
    x = torch.zeros(1, 1, 2, 8)
    plan = plan_split_calls([Forest.of([2], [None])], CPU)
    with pytest.raises(ValueError, match="takes no attention_mask"):
        split_attention_forward(MODULE, x, x, x, torch.ones(2, 2), split_calls=plan, scaling=1.0)


@pytest.mark.parametrize(("planned", "asked"), [(None, 4), (4, None), (4, 5), (5, 4)])
def test_a_layer_of_another_window_than_its_plan_is_refused(planned: int | None, asked: int | None) -> None:
    x = torch.zeros(1, 1, 2, 8)
    plan = plan_split_calls([Forest.of([2], [None])], CPU, window=planned)
    with pytest.raises(ValueError, match=f"asks for sliding_window {asked}, its rows came with {planned}"):
        split_attention_forward(MODULE, x, x, x, None, split_calls=plan, scaling=1.0, sliding_window=asked)


def test_a_module_that_does_not_say_which_layer_it_is_in_gets_no_plan_by_type() -> None:
    x = torch.zeros(1, 1, 2, 8)
    plans = {"full_attention": plan_split_calls([Forest.of([2], [None])], CPU)}
    with pytest.raises(ValueError, match=r"Identity has no layer_idx or no config\.layer_types"):
        split_attention_forward(MODULE, x, x, x, None, split_calls=plans, scaling=1.0)

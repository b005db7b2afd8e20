from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import GPT2Config, GPT2LMHeadModel

from packed_impl.flex import (
    _mask_mod,
    _mask_mod_by_table,
    _subtree_stops,
    allowed_cells,
    block_mask,
    effective_mask,
    flex_attention_forward,
)
from packed_impl.forest import Forest, attention_rule, padded
from packed_impl.prefix_tree import prefix_forest
from packed_impl.step import per_token_logps

CPU = torch.device("cpu")


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=7))
    parents = [draw(st.none() | st.integers(0, index - 1)) if index else None for index in range(len(lengths))]
    return Forest.of(lengths, parents)


WINDOWS = st.none() | st.integers(1, 20)


@given(forests(), st.sampled_from([2, 4, 8]), WINDOWS)
def test_the_block_table_counts_the_cells_of_the_rule(forest: Forest, size: int, window: int | None) -> None:
    num_blocks = -(-forest.num_slots // size)
    rule = torch.zeros(num_blocks * size, num_blocks * size, dtype=torch.long)
    rule[: forest.num_slots, : forest.num_slots] = attention_rule(forest, window)
    expected = rule.view(num_blocks, size, num_blocks, size).sum((1, 3))
    assert torch.equal(allowed_cells(forest, size, window), expected)


@settings(deadline=None)
@given(st.lists(forests(), min_size=1, max_size=3), st.sampled_from([2, 4, 8]), WINDOWS)
def test_full_and_partial_blocks_together_are_the_rule(rows: list[Forest], size: int, window: int | None) -> None:
    longest = max(forest.num_slots for forest in rows)
    rows = [padded(forest, longest) for forest in rows]
    expected = torch.stack([attention_rule(forest, window) for forest in rows])
    assert torch.equal(effective_mask(block_mask(rows, CPU, block_size=size, window=window)), expected)


@pytest.mark.parametrize("prompt", [127, 128, 129])
@pytest.mark.parametrize("response", [127, 128, 129])
def test_the_table_holds_at_block_edges_and_equals_the_one_torch_makes(prompt: int, response: int) -> None:
    forest = Forest.of([prompt, response, 1, response], [None, 0, None, 0])
    mask = block_mask([forest], CPU)
    assert torch.equal(effective_mask(mask)[0], attention_rule(forest))
    made_by_torch = create_block_mask(mask.mask_mod, 1, 1, forest.num_slots, forest.num_slots, device="cpu")
    assert torch.equal(effective_mask(made_by_torch)[0], attention_rule(forest))
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mask, name), getattr(made_by_torch, name)), name


@pytest.mark.parametrize("window", [None, 129, 300])
def test_the_table_holds_four_levels_down_and_in_padding(window: int | None) -> None:
    forest = padded(Forest.of([300, 60, 130, 70, 40, 150], [None, 0, 1, 2, 2, 1]), 900)
    mask = block_mask([forest], CPU, window=window)
    assert (mask.full_kv_num_blocks > 0).any() == (window != 129)
    assert torch.equal(effective_mask(mask)[0], attention_rule(forest, window))
    made_by_torch = create_block_mask(mask.mask_mod, 1, 1, forest.num_slots, forest.num_slots, device="cpu")
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mask, name), getattr(made_by_torch, name)), name


@pytest.mark.parametrize(("made", "asked"), [(None, 4), (4, None), (4, 5)])
def test_a_layer_of_another_window_than_its_mask_is_refused(made: int | None, asked: int | None) -> None:
    x = torch.zeros(1, 1, 2, 8)
    mask = block_mask([Forest.of([2], [None])], CPU, window=made).to("cpu")
    with pytest.raises(ValueError, match=f"asks for sliding_window {asked}, its rows came with {made}"):
        flex_attention_forward(torch.nn.Identity(), x, x, x, mask, scaling=1.0, sliding_window=asked)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=1, max_size=8))
def test_descendants_lie_together_in_a_prefix_tree(sequences: list[tuple[int, ...]]) -> None:
    """So that the mask function looks one number up and needs no table."""
    assert _subtree_stops(prefix_forest(sequences).forest) is not None


def retabled(mask: BlockMask, *, num_partial: torch.Tensor, num_full: torch.Tensor) -> BlockMask:
    return BlockMask.from_kv_blocks(
        num_partial,
        mask.kv_indices,
        num_full,
        mask.full_kv_indices,
        BLOCK_SIZE=mask.BLOCK_SIZE,
        mask_mod=mask.mask_mod,
        seq_lengths=mask.seq_lengths,
    )


def test_a_lost_block_and_a_block_wrongly_called_full_are_seen() -> None:
    forest = Forest.of([130, 140, 150], [None, 0, 0])
    mask = block_mask([forest], CPU)
    assert (mask.full_kv_num_blocks > 0).any()
    lost = retabled(mask, num_partial=mask.kv_num_blocks, num_full=torch.zeros_like(mask.full_kv_num_blocks))
    assert not torch.equal(effective_mask(lost)[0], attention_rule(forest))
    swapped = BlockMask.from_kv_blocks(
        mask.full_kv_num_blocks,
        mask.full_kv_indices,
        mask.kv_num_blocks,
        mask.kv_indices,
        BLOCK_SIZE=mask.BLOCK_SIZE,
        mask_mod=mask.mask_mod,
        seq_lengths=mask.seq_lengths,
    )
    assert not torch.equal(effective_mask(swapped)[0], attention_rule(forest))


def test_a_block_listed_twice_is_an_error() -> None:
    mask = block_mask([Forest.of([300], [None])], CPU)
    twice = retabled(mask, num_partial=torch.full_like(mask.kv_num_blocks, 3), num_full=mask.full_kv_num_blocks)
    with pytest.raises(ValueError, match="listed twice"):
        effective_mask(twice)


def test_flex_needs_a_block_mask() -> None:
    x = torch.zeros(1, 1, 2, 8)
    with pytest.raises(ValueError, match="needs a BlockMask, got NoneType"):
        flex_attention_forward(torch.nn.Identity(), x, x, x, None, scaling=1.0)


def test_gpt2_which_asks_how_many_dimensions_its_mask_has_is_computed_as_with_sdpa(make_group: type) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=13, n_positions=16, n_embd=8, n_layer=1, n_head=2)).eval()
    groups = [make_group((1, 2), ((3, 4),), ((5, 6, 7),))]
    with torch.no_grad():
        flex, dense = (torch.cat(per_token_logps(model, groups, backend=name)) for name in ("flex", "dense-sdpa"))
    torch.testing.assert_close(flex, dense)


def test_flex_refuses_mixed_dtypes_where_no_autocast_says_which_to_take() -> None:
    x = torch.zeros(1, 1, 2, 8)
    mask = block_mask([Forest.of([2], [None])], CPU)
    with pytest.raises(ValueError, match=r"mixed dtypes .*value torch\.bfloat16"):
        flex_attention_forward(torch.nn.Identity(), x, x, x.bfloat16(), mask, scaling=1.0)


@given(forests())
def test_both_mask_functions_are_the_rule(forest: Forest) -> None:
    """The one that looks one stop up is used where it may be, so that the other meets few rows of itself."""
    slots = torch.arange(forest.num_slots)
    row, query, key = torch.zeros((), dtype=torch.long), slots[:, None], slots[None, :]
    assert torch.equal(_mask_mod_by_table([forest], CPU)(row, row, query, key), attention_rule(forest))
    assert torch.equal(_mask_mod([forest], CPU)(row, row, query, key), attention_rule(forest))


def test_a_stranger_between_a_segment_and_its_child_is_noticed() -> None:
    assert _subtree_stops(Forest.of([2, 1, 2], [None, 0, 0])) == [5, 3, 5]
    assert _subtree_stops(Forest.of([2, 1, 2], [None, None, 0])) is None
    assert _subtree_stops(Forest.of([2, 1, 2], [None, 0, None])) == [3, 3, 5]

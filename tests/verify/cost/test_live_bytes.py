"""Live bytes by hand: what is made, shared, freed and held."""

from __future__ import annotations

import torch

from verify.cost.live_bytes import LiveBytes


def test_the_peak_is_what_was_alive_together() -> None:
    with LiveBytes([]) as followed:
        first = torch.empty(1000, dtype=torch.uint8)
        second = torch.empty(500, dtype=torch.uint8)
        del first
        third = torch.empty(200, dtype=torch.uint8)
    assert (followed.live, followed.peak) == (700, 1500)
    del second, third


def test_a_view_is_no_second_storage() -> None:
    with LiveBytes([]) as followed:
        whole = torch.empty(1000, dtype=torch.uint8)
        part = whole[10:20]
    assert followed.live == 1000
    del whole, part


def test_what_is_held_counts_once_and_from_the_beginning() -> None:
    weights = torch.empty(100)
    with LiveBytes([weights, weights[:3]]) as followed:
        assert followed.live == 400
        weights.add_(1)
        grown = weights + 1
    assert followed.peak == 800
    del grown


def test_activations_that_backward_needs_are_alive_until_it_is_over() -> None:
    """exp keeps its output of 4,000 bytes; its gradient and that of the leaf come in backward."""
    leaf = torch.ones(1000, requires_grad=True)
    with LiveBytes([leaf]) as followed:
        loss = leaf.exp().sum()
        kept = followed.live
        loss.backward()
    assert kept == 4000 + 4000 + 4
    assert leaf.grad is not None
    assert followed.peak >= 3 * 4000


def test_nothing_is_left_of_what_was_freed() -> None:
    with LiveBytes([]) as followed:
        for _ in range(5):
            torch.empty(1000, dtype=torch.uint8).sum()
    assert followed.live == 0
    assert followed.peak <= 1000 + 8 + 8

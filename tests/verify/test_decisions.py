"""Decisions are counted pair by pair; ties are one half."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from verify.decisions import Decisions, decide, total


def test_flips_and_ties_by_hand() -> None:
    """Five pairs: right, flipped, a tie against a decision, both tied, both wrong."""
    actual = torch.tensor([1.0, -1e-9, 0.0, 0.0, -2.0], dtype=torch.float64)
    expected = torch.tensor([2.0, 1e-9, 3.0, 0.0, -1.0], dtype=torch.float64)
    assert decide(actual, expected) == Decisions(
        num_pairs=5, flipped=2, ties=2, halves_right=4, expected_halves_right=7
    )


margins = st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.sampled_from([-1.0, 0.0, 1.0])), max_size=8)


@given(margins, margins)
def test_the_counts_of_two_batches_add_up_to_those_of_both_together(
    first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> None:
    def of(pairs: list[tuple[float, float]]) -> Decisions:
        return decide(torch.tensor([a for a, _ in pairs]), torch.tensor([e for _, e in pairs]))

    assert total([of(first), of(second)]) == of(first + second)

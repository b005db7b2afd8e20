"""Ranks that differ are named, with what they have and what the others have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verify.preflight.agreement import agreement

BASE = {"torch": "2.13.0", "python": "3.11.9"}


def test_equal_ranks_agree_and_the_digest_says_on_what() -> None:
    found, other = agreement("versions", [BASE] * 3, hint="x"), agreement("versions", [{"torch": "1"}] * 3, hint="x")
    assert found.outcome == other.outcome == "GO"
    assert "equal on 3 ranks: 2 values" in found.seen
    assert found.seen.split()[-1] != other.seen.split()[-1]


def test_the_rank_that_differs_is_named_with_both_values() -> None:
    found = agreement("versions", [BASE, BASE, {**BASE, "torch": "2.12.0"}], hint="install the same")
    assert found.outcome == "NO-GO"
    assert found.seen == "torch is 2.12.0 on rank 2, 2.13.0 on ranks 0 and 1"
    assert found.hint == "install the same"


def test_of_two_ranks_that_differ_rank_0_is_what_is_compared_with() -> None:
    found = agreement("arguments", [{"seed": "0"}, {"seed": "1"}], hint="x")
    assert found.seen == "seed is 1 on rank 1, 0 on rank 0"


def test_a_value_that_a_rank_does_not_have_is_a_difference() -> None:
    found = agreement("settings", [{"NCCL_ALGO": "Ring"}, {}], hint="x")
    assert found.seen == "NCCL_ALGO is absent on rank 1, Ring on rank 0"


def test_many_differences_are_counted_not_listed() -> None:
    ranks = [{str(n): str(rank) for n in range(30)} for rank in (0, 1)]
    assert agreement("x", ranks, hint="x").seen.endswith("; and 26 more")


_VALUES = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=3)


@given(st.lists(_VALUES, min_size=2, max_size=5))
def test_ranks_agree_exactly_where_all_have_the_same(ranks: list[dict[str, str]]) -> None:
    same = all(values == ranks[0] for values in ranks)
    assert (agreement("x", ranks, hint="x").outcome == "GO") is same

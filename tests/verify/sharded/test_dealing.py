"""Work is dealt out alike on all ranks, all of it once, and no rank has much more to do than another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verify.sharded.dealing import dealt, largest_load


def test_the_dearest_item_has_a_rank_of_its_own() -> None:
    assert dealt([1.0, 3.0, 1.0], 2) == [1, 0, 1]
    assert largest_load([1.0, 3.0, 1.0], 2) == 3.0


@given(st.lists(st.floats(0.1, 9.0), max_size=12), st.integers(1, 4))
def test_no_rank_is_dealt_more_than_an_even_share_and_one_item(costs: list[float], num_ranks: int) -> None:
    ranks = dealt(costs, num_ranks)
    assert all(0 <= rank < num_ranks for rank in ranks)
    assert len(ranks) == len(costs)
    most = sum(costs) / num_ranks + max(costs, default=0.0)
    assert largest_load(costs, num_ranks) <= most + 1e-9

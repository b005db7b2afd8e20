"""Epochs small enough to count by hand or by walking every slot."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify.packing_plan import simulate as simulate_module
from verify.packing_plan.costs import FlopPrices, GroupLengths
from verify.packing_plan.distributions import DISTRIBUTIONS, named_distribution
from verify.packing_plan.simulate import (
    PLANS,
    REPEATED_ROWS,
    SHARED_ROWS,
    Setting,
    order_in_rows,
    simulate,
    simulate_row_limits,
)

TOKENS_ONLY = FlopPrices(by_token=1, by_pair=0, by_predictor=0)
PAIRS_ONLY = FlopPrices(by_token=0, by_pair=1, by_predictor=0)


def setting(prices: FlopPrices = TOKENS_ONLY, **changed: int) -> Setting:
    return Setting(**{"num_ranks": 1, "groups_per_rank": 1, "row_limit": 40, "seed": 0, "prices": prices, **changed})


PAIR = GroupLengths(4, (2, 3))  # sequences of 6 and 7 tokens; packed 9


def test_a_plain_pair_is_two_rows_padded_to_the_longer() -> None:
    (plain,) = simulate([PAIR], setting(), ["plain"])
    assert (plain.slots_per_step, plain.useful_tokens_per_step) == (14, 13)
    assert plain.padded_tokens_per_step == 1
    assert plain.examples_per_row == 0.5
    assert plain.speed_up == 1


def test_a_packed_pair_is_one_row() -> None:
    (packed,) = simulate([PAIR], setting(), ["packing"])
    assert (packed.slots_per_step, packed.useful_tokens_per_step) == (9, 9)
    assert packed.speed_up == 14 / 9


def test_attention_is_counted_pair_by_pair() -> None:
    """Plain: a causal kernel over two rows of 7. Packed: every token with itself and its ancestors."""
    plain, packed = simulate([PAIR], setting(PAIRS_ONLY), ["plain", "packing"])
    walked = sum(range(1, 5)) + (5 + 6) + (5 + 6 + 7)
    assert plain.flops / plain.num_steps == 2 * sum(range(1, 8))
    assert packed.flops / packed.num_steps == walked


def test_padding_attends_to_itself_in_packed_rows() -> None:
    """A group of 9 beside one of 3: six slots of padding, a causal block of 21 pairs."""
    short = GroupLengths(1, (1, 1))
    (packed,) = simulate([PAIR, short], setting(PAIRS_ONLY, groups_per_rank=2), ["packing"])
    both = 2 * (sum(range(1, 5)) + (5 + 6) + (5 + 6 + 7)), 2 * (1 + 2 + 2 + 21)
    mixed = sum(both) / 2
    # A step holds two groups of the shuffled epoch: two long, two short or one of each.
    possible = {both[0], 2 * (1 + 2 + 2), mixed}
    mean = packed.flops / packed.num_steps
    assert min(possible) <= mean <= max(possible)
    assert (packed.padded_tokens_per_step * packed.num_steps) % 6 == 0


def test_ranks_wait_for_the_slowest() -> None:
    """Each shuffled copy of the data set is one step here: one rank has 9 slots, the other 3."""
    short = GroupLengths(1, (1, 1))
    (packed,) = simulate([PAIR, short], setting(num_ranks=2), ["packing, sorting"])
    assert packed.waiting_share < 0.01  # one step at most holds both
    (unsorted,) = simulate([PAIR, short], setting(num_ranks=2), ["packing"])
    assert unsorted.waiting_share == pytest.approx((9 - 3) / (2 * 9))


def test_sequence_packing_fills_rows_of_the_limit() -> None:
    (shared,) = simulate([PAIR], setting(row_limit=20), ["sequence packing, prompts shared"])
    assert shared.examples_per_row == 2
    assert shared.token_utilisation == 18 / 20
    # Three sequences of 7 tokens to a row, or three of 6: each row holds the halves of three groups.
    (repeated,) = simulate([PAIR], setting(row_limit=21), ["sequence packing, prompts repeated"])
    assert repeated.examples_per_row == pytest.approx(1.5, rel=0.05)
    assert repeated.token_utilisation == pytest.approx(19.5 / 21, rel=0.05)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.builds(GroupLengths, st.integers(1, 20), st.tuples(st.integers(1, 9), st.integers(1, 9))),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_what_holds_for_every_plan(groups: list[GroupLengths], num_ranks: int, groups_per_rank: int) -> None:
    made = setting(FlopPrices(7, 1, 3), num_ranks=num_ranks, groups_per_rank=groups_per_rank)
    for found in simulate(groups, made):
        if not found.plan.startswith("sequence packing"):
            assert found.num_examples % (num_ranks * groups_per_rank) == 0
        assert 0 < found.token_utilisation <= 1
        assert 0 <= found.waiting_share < 1
        assert found.peak_slots * num_ranks >= found.slots_per_step
        assert found.speed_up > 0
    by_name = {found.plan: found for found in simulate(groups, made)}
    assert list(by_name) == list(PLANS)
    for shared, repeated in (("packing", "plain"), ("packing, sorting", "sorting")):
        # A group never has more slots packed than its two padded sequences.
        assert by_name[shared].useful_tokens_per_step < by_name[repeated].useful_tokens_per_step
        assert by_name[shared].num_examples == by_name[repeated].num_examples


def test_the_same_seed_gives_the_same_results() -> None:
    groups = list(named_distribution("log-normal").draw(200, 1))
    made = setting(num_ranks=4, groups_per_rank=2, row_limit=8192)
    assert simulate(groups, made) == simulate(groups, made)


def test_sorting_leaves_less_padding_and_less_waiting() -> None:
    groups = list(named_distribution("log-normal").draw(2000, 0))
    made = setting(num_ranks=4, groups_per_rank=4, row_limit=8192)
    plain, bucketing, sorting = simulate(groups, made, ["plain", "bucketing", "sorting"])
    assert plain.token_utilisation < bucketing.token_utilisation < sorting.token_utilisation
    assert plain.waiting_share > bucketing.waiting_share > sorting.waiting_share


@pytest.mark.parametrize(("name", "ratio"), [("prompt-long", 5 / 8), ("balanced", 3 / 4), ("response-long", 7 / 8)])
def test_named_regimes_save_their_share_of_tokens(name: str, ratio: float) -> None:
    """Prompt and response lengths 192/64, 128/128 and 64/192: (p + 2r) / 2(p + r)."""
    plain, packed = simulate(list(DISTRIBUTIONS[name].draw(8, 0)), setting(), ["plain", "packing"])
    assert packed.slots_per_step / plain.slots_per_step == ratio


def test_the_log_normal_has_its_median_and_spread() -> None:
    drawn = DISTRIBUTIONS["log-normal"].draw(4001, 0)
    logs = sorted(math.log(group.responses[0]) for group in drawn)
    assert math.exp(logs[2000]) == pytest.approx(270, rel=0.05)
    assert (logs[3364] - logs[636]) / 2 == pytest.approx(0.7, rel=0.06)  # the middle 68 %


@pytest.mark.parametrize(
    ("groups", "changed", "plans", "message"),
    [
        ([], {}, (), "no group to plan for"),
        ([PAIR], {}, ("other",), "unknown plan 'other'"),
        ([PAIR], {"row_limit": 8}, (), "takes 9 slots, more than the row limit of 8"),
        ([PAIR], {"num_ranks": 0}, (), "num_ranks is 0"),
    ],
)
def test_bad_requests_are_refused(
    groups: list[GroupLengths], changed: dict[str, int], plans: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(groups, setting(**changed), plans)


def test_an_unknown_distribution_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="prompt-long, balanced, response-long, log-normal"):
        named_distribution("uniform")


def test_row_limits_are_run_over_one_epoch() -> None:
    groups = list(named_distribution("log-normal").draw(300, 0, (2, 5)))
    made = setting(num_ranks=2, groups_per_rank=2, row_limit=16384)
    found = simulate_row_limits(groups, replace(made, other_row_limits=(8192,)))
    assert [(limit, result.plan) for limit, result in found] == [
        (8192, REPEATED_ROWS), (8192, SHARED_ROWS), (16384, REPEATED_ROWS), (16384, SHARED_ROWS),
    ]  # fmt: skip
    alone = simulate(groups, made, [REPEATED_ROWS, SHARED_ROWS])
    assert tuple(result for limit, result in found if limit == 16384) == alone


@given(
    st.lists(
        st.builds(GroupLengths, st.integers(1, 12), st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)),
        min_size=1,
        max_size=6,
    ),
    st.integers(30, 70),
    st.sets(st.sampled_from([32, 64, 128, 256, 512]), min_size=1),
)
@settings(deadline=None, max_examples=25)
def test_a_plan_at_a_row_limit_is_one_result_however_it_is_asked_for(
    groups: list[GroupLengths], row_limit: int, other_limits: set[int]
) -> None:
    """A short data set is repeated, and no larger limit may repeat it another number of times for one of the two."""
    made = replace(
        setting(num_ranks=2, groups_per_rank=2, row_limit=row_limit), other_row_limits=tuple(sorted(other_limits))
    )
    by_limit = {
        (limit, result.plan): result for limit, result in simulate_row_limits(groups, made) if limit == row_limit
    }
    assert list(by_limit.values()) == list(simulate(groups, made, [plan for _, plan in by_limit]))


def test_groups_of_very_many_responses_are_repeated_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one group of 10,000 responses became an epoch of millions of sequences."""
    group = GroupLengths(4, (2,) * 20)
    monkeypatch.setattr(simulate_module, "_MOST_SEQUENCES", 60)
    (plain,) = simulate([group], setting(row_limit=64), ["plain"])
    assert plain.num_examples == 3
    (plain,) = simulate([group], setting(row_limit=64, num_ranks=4), ["plain"])
    assert (plain.num_examples, plain.num_steps) == (4, 1)  # a whole step at least


def test_groups_of_any_size_have_their_work_counted() -> None:
    """Prompt 4, responses 2, 3 and 1, packed into rows of 20: two groups and no padding."""
    group = GroupLengths(4, (2, 3, 1))
    walked = sum(range(1, 5)) + (5 + 6) + (5 + 6 + 7) + 5
    (shared,) = simulate([group], setting(PAIRS_ONLY, row_limit=20), [SHARED_ROWS])
    assert (shared.token_utilisation, shared.examples_per_row) == (1, 2)
    assert shared.flops / shared.num_examples == walked
    # A row for each of the sequences of 7, 6 and 5 tokens; one and two slots of padding attend to themselves.
    (repeated,) = simulate([group], setting(PAIRS_ONLY, row_limit=7), [REPEATED_ROWS])
    assert repeated.token_utilisation == pytest.approx(18 / 21)
    assert repeated.flops / repeated.num_examples == pytest.approx(28 + 21 + 15 + 1 + 3)


def test_the_shuffle_keeps_neighbours_of_the_data_set_apart() -> None:
    """Groups of one length come out of first-fit decreasing in the order in which they went in."""
    groups = [GroupLengths(2, (1, 1))] * 400
    made = setting(row_limit=16)
    shuffled, unshuffled = (order_in_rows(groups, made, shuffled=shuffled) for shuffled in (True, False))
    assert shuffled is not None
    assert unshuffled is not None
    assert not shuffled.follows_dataset_order
    assert unshuffled.follows_dataset_order
    assert order_in_rows(groups, setting(row_limit=4), shuffled=True) is None


def test_uneven_groups_are_drawn_from_both_ends() -> None:
    drawn = named_distribution("balanced").draw(200, 0, (1, 4))
    assert {len(group.responses) for group in drawn} == {1, 2, 3, 4}

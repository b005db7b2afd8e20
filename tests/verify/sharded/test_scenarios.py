"""How pairs are cut into batches for ranks: nothing is left out, and ranks of the probed batch are uneven."""

from __future__ import annotations

import pytest

from verify.groups import PreferenceGroup
from verify.models.request import ModelRequest
from verify.sharded.run import ShardedRequest
from verify.sharded.scenarios import (
    Scenario,
    as_asked,
    default_scenarios,
    probed_scenario,
    real_scenarios,
    unlike_round,
)
from verify.subjects.selection import select_subject
from verify.subjects.sharded import HONEST
from verify.tolerance import load_policy


def pairs(count: int) -> list[PreferenceGroup]:
    return [PreferenceGroup((1, number), ((2,),), ((3,),), source=f"rows.jsonl:{number}") for number in range(count)]


def sizes(scenario: Scenario, world_size: int) -> list[list[int]]:
    """Sizes of the micro-batches of each rank."""
    of_ranks = HONEST.assign(len(scenario.case.groups), world_size)
    return [list(map(len, HONEST.micro_batches(places, scenario.micro_size))) for places in of_ranks]


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8, 9, 12, 23])
def test_every_pair_is_in_one_batch_and_ranks_of_the_first_are_uneven(count: int, world_size: int) -> None:
    groups = pairs(count)
    if count <= world_size:
        with pytest.raises(ValueError, match=f"{count} pairs over {world_size} ranks: .* or at least {world_size + 1}"):
            real_scenarios(groups, world_size)
        return
    probed, cached, unlike, *others = real_scenarios(groups, world_size)
    assert [group for scenario in (probed, *others) for group in scenario.case.groups] == groups
    assert probed.case is cached.case is unlike.case
    assert (cached.reference, len({scenario.name for scenario in (probed, cached, unlike, *others)})) == (
        "cached",
        3 + len(others),
    )
    first, *rest = (sum(of_rank) for of_rank in sizes(probed, world_size))
    assert first > rest[-1]
    if first > 2:
        assert len(set(sizes(probed, world_size)[0])) > 1  # of other sizes on the first rank itself
    assert sizes(unlike, world_size) == [[len(places)] for places in HONEST.assign(len(probed.case.groups), world_size)]


def test_what_a_batch_is_made_of_can_be_found_in_the_file() -> None:
    assert real_scenarios(pairs(3), 2)[0].case.why == "real pairs rows.jsonl:0, rows.jsonl:1, rows.jsonl:2"


def test_of_the_pairs_of_our_own_one_round_is_unlike_too() -> None:
    assert sizes(unlike_round(probed_scenario(257, 0, 4), 4), 4) == [[3], [2], [2], [2]]


def test_two_subjects_of_one_name_are_refused() -> None:
    """The second one's results in one process would stand for those of the first."""
    twice = (select_subject("split"),) * 2
    with pytest.raises(ValueError, match="subjects named twice: split"):
        ShardedRequest(
            model=ModelRequest(name="tiny"), precisions=("float32",), subjects=twice, scenarios=(),
            policy=load_policy(None), variations=(), seed=0,
        )  # fmt: skip


def test_every_case_that_compares_is_under_the_objective_of_the_run_and_over_its_frozen_policy() -> None:
    own = default_scenarios(257, 0, 2, full=False)
    asked = as_asked(own, "ipo", "frozen-adapter")
    assert [scenario.name for scenario in asked] == [scenario.name for scenario in own]
    objectives = {s.case.objective_name for s in asked if not s.case.objective_name.startswith("sft")}
    assert objectives == {"ipo"}
    assert {s.reference for s in asked if not s.name.endswith("/cached")} == {"frozen-adapter"}
    assert as_asked(own, "sigmoid", "adapters-off") == own


def test_over_a_cached_frozen_policy_the_probed_case_is_there_once() -> None:
    asked = as_asked(default_scenarios(257, 0, 2, full=False), "sigmoid", "cached")
    assert [scenario.name for scenario in asked[:2]] == ["uneven-over-ranks/cached", "unlike-in-one-round/cached"]
    assert {scenario.reference for scenario in asked} == {"cached"}


def test_a_reward_model_has_neither_cached_values_nor_supervised_examples() -> None:
    asked = as_asked(default_scenarios(257, 0, 2, full=True, objectives=False), "reward-model", "adapters-off")
    assert {scenario.case.objective_name for scenario in asked} == {"reward-model"}
    assert not any(scenario.reference == "cached" for scenario in asked)

"""Collectives that give other values are told from right ones; a clock that does not run forward is not believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from verify.preflight.collectives import COLLECTIVES, Collective, bandwidth, check_results, given_by
from verify.preflight.finding import Finding

WORLD_SIZE, RANK = 3, 1


def honest(collective: Collective) -> Collective:
    """The collective as the ranks of one process: each rank's gift is known, so no group is needed."""
    given = [given_by(rank, 1024 * WORLD_SIZE, "cpu") for rank in range(WORLD_SIZE)]
    return replace(collective, call=lambda ours: collective.expected(given, RANK).clone())


def check(*collectives: Collective) -> Finding:
    return check_results(RANK, WORLD_SIZE, "cpu", collectives)


def test_what_every_rank_gives_is_told_apart_by_rank_and_place() -> None:
    one, other = given_by(0, 251, "cpu"), given_by(1, 251, "cpu")
    assert len(set(one.tolist())) == 251
    assert not torch.equal(one, other)


def test_known_results_are_go() -> None:
    assert check(*map(honest, COLLECTIVES)).outcome == "GO"


def _shifted(result: Tensor) -> Tensor:
    return result.roll(1)


def _short(result: Tensor) -> Tensor:
    return result[:-1]


def _one_element(result: Tensor) -> Tensor:
    result[7] += 1
    return result


def _not_a_number(result: Tensor) -> Tensor:
    return result * float("nan")


@pytest.mark.parametrize("spoil", [_shifted, _short, _one_element, _not_a_number])
@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda collective: collective.name)
def test_another_result_is_no_go_and_names_the_collective(collective: Collective, spoil: object) -> None:
    right = honest(collective)
    wrong = replace(right, call=lambda given: spoil(right.call(given)))  # type: ignore[operator]
    others = [honest(each) for each in COLLECTIVES if each.name != collective.name]
    found = check(*others, wrong)
    assert found.outcome == "NO-GO"
    assert f"{collective.name} gave" in found.seen


def test_bus_bandwidth_is_that_of_the_slowest_rank_by_the_formula_of_nccl_tests() -> None:
    times = [{name.name: {10**6: seconds} for name in COLLECTIVES} for seconds in (0.001, 0.002)]
    found = {each.part: each.measures["bytes_per_s_at_1000000_bytes"] for each in bandwidth(times)}
    assert found == pytest.approx({"all_reduce": 5e8, "all_gather": 2.5e8, "reduce_scatter": 2.5e8, "broadcast": 5e8})


@pytest.mark.parametrize("seconds", [0.0, -0.5])
def test_a_clock_that_stands_still_or_steps_back_on_all_ranks_is_no_go(seconds: float) -> None:
    times = [{collective.name: {1024: seconds} for collective in COLLECTIVES}] * 2
    assert {each.outcome for each in bandwidth(times)} == {"NO-GO"}

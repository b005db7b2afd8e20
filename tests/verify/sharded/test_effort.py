"""How long a precision will take, counted in tokens before it begins."""

from __future__ import annotations

import pytest

from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.sharded.effort import (
    BENCH_STEPS,
    CHECK_STEPS,
    FAULT_STEPS,
    HARMLESS_STEPS,
    Workload,
    largest_share,
)
from verify.sharded.scenarios import Scenario


@pytest.fixture
def scenario() -> Scenario:
    """A pair of 20 + 5 and 20 + 3 tokens, one of half as many, and one like the first."""
    long, short = (PreferenceGroup((1,) * p, ((1,) * c,), ((1,) * r,)) for p, c, r in ((20, 5, 3), (10, 2, 2)))
    return Scenario(case=Case(name="three", why="", groups=(long, short, long)), micro_size=1)


def workload(scenario: Scenario, *, faults: int = 0, harmless: int = 0) -> Workload:
    return Workload(
        scenarios=(scenario,), runs=(scenario, scenario), num_unpacked=2, num_faults=faults, num_harmless=harmless
    )


def test_the_rank_that_has_most_tokens_decides(scenario: Scenario) -> None:
    assert largest_share(scenario, 2) == 2 * 28
    assert largest_share(scenario, 3) == 28


def test_one_process_is_shared_among_ranks_and_every_sharded_step_counts(scenario: Scenario) -> None:
    one_process = 4 * 120  # of the oracle at 3 and of four forms at 1, dealt to two ranks: 3 + 1, and 1 + 1 + 1
    assert workload(scenario).tokens(2) == one_process + (2 + BENCH_STEPS + CHECK_STEPS) * 56
    more = workload(scenario, faults=4, harmless=1).tokens(2) - workload(scenario).tokens(2)
    assert more == (4 * FAULT_STEPS + HARMLESS_STEPS) * 56


def test_what_is_run_is_said(scenario: Scenario) -> None:
    said = "parity of 2 subjects and scenarios, sequences of up to 25 tokens; checks, 14 faults and 5 harmless changes"
    assert workload(scenario, faults=14, harmless=5).in_words() == said

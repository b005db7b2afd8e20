"""What only one default case of a kind shows is caught there, by the gate on one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from verify.default_cases.tiny import tiny_cases
from verify.faults.catalogue import FAULTS, mutation_named
from verify.faults.kill_matrix import Kill, Outcome, kill_of
from verify.gate import GateOutcome
from verify.packed_proof import summarise
from verify.subjects.faulty import FaultySubject

CASES = tiny_cases(257, 0)
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "groups-masked": (
        "masked-tokens-replaced", "positions-restart-at-turns", "user-turns-supervised", "mask-of-first-holder",
        "prompt-found-by-its-start",
    ),
    "groups-of-many": (
        "third-positive-and-later-dropped", "equal-responses-weigh-once", "groups-alike-read-by-sides",
        "groups-of-one-prompt-merged", "last-group-of-a-prompt", "causal-for-groups-alike",
        "prompt-of-one-token-hidden", "equal-responses-merged",
    ),
    "groups-long": (
        "positions-wrap-at-256", "sliding-window", "block-missing", "huge-gradients-on-block-boundary",
        "labels-cut-at-64", "sixth-level-one-late",
    ),
    "examples-long": (
        "positions-wrap-at-256", "sliding-window", "block-missing", "huge-gradients-on-block-boundary",
        "labels-cut-at-64", "fourth-span-and-later-dropped", "labels-of-first-chunk", "last-group-of-a-prompt",
    ),
    "examples-with-end-tokens": ("equal-examples-counted-once", "causal-for-groups-alike"),
    "conversation-turn-by-turn": (
        "labels-kept-by-text", "mask-of-first-holder", "deep-siblings-not-isolated",
        "end-inside-the-tree-not-counted", "prompt-found-by-its-start",
    ),
}  # fmt: skip
"""By case, faults that no other case of its kind shows."""
SHOWN_BY_TWO = {
    "fifth-negative-and-later-dropped": ("groups-of-many", "groups-long"),
    "equal-ends-merged": ("groups-masked", "groups-of-many", "examples-with-end-tokens", "conversation-turn-by-turn"),
    "end-of-inner-turns-not-counted": ("examples-with-end-tokens", "conversation-turn-by-turn"),
    "cut-at-first-end-token": ("examples-with-end-tokens", "conversation-turn-by-turn"),
    "fifth-loss-and-later-left-out": ("examples-long", "conversation-turn-by-turn"),
}
FOUND_ON = {
    **{f: tuple(case for case, faults in SHOWN_BY.items() if f in faults) for of in SHOWN_BY.values() for f in of},
    **SHOWN_BY_TWO,
}


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_no_other_default_case_of_the_kind_shows_it(seed: int) -> None:
    cases = {case.name: case for case in tiny_cases(257, seed)}
    for name, faults in SHOWN_BY.items():
        for fault in map(mutation_named, faults):
            of_kind = [case.name for case in cases.values() if case.kind == cases[name].kind and fault.bites(case)]
            assert of_kind == [name], fault.name


def test_every_fault_is_shown_on_every_kind_of_case_that_it_is_planted_on() -> None:
    """A condition that pairs alone meet says nothing of a subject that lays out groups or examples."""
    unseen = [
        (fault.name, kind)
        for fault in FAULTS
        for kind in fault.kinds
        if not any(case.kind == kind and fault.bites(case) for case in CASES)
    ]
    assert unseen == []


@pytest.fixture(scope="module")
def kills(gate: Callable[..., GateOutcome]) -> Mapping[str, Kill]:
    subjects = [FaultySubject(mutation=mutation_named(f), cases=frozenset(cases)) for f, cases in FOUND_ON.items()]
    run = gate(subjects, [case for case in CASES if case.name in SHOWN_BY], variations=("eager", "padded-left"))
    summaries = summarise(run.results, subjects, ["float32"])
    return {f: kill_of(mutation_named(f), s) for f, s in zip(FOUND_ON, summaries, strict=True)}


@pytest.mark.parametrize("fault", FOUND_ON)
def test_it_is_caught_on_every_case_that_is_there_for_it(kills: Mapping[str, Kill], fault: str) -> None:
    kill = kills[fault]
    assert kill.outcome is Outcome.KILLED, kill.reasons
    assert set(kill.cases) == set(FOUND_ON[fault])
    assert kill.weakest_margin > 10

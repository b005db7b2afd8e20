"""Faults of trees, larger groups, examples and bins through the gate on one layer; their harmless variations pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from verify.default_cases.tiny import tiny_cases
from verify.faults import bins, examples, labels, larger_groups, prefix_trees
from verify.faults.catalogue import CATALOGUE, biting_cases, mutation_named
from verify.faults.fault import Fault, Mutation
from verify.faults.kill_matrix import Kill, Outcome, kill_of
from verify.faults.layout_controls import LAYOUT_MUTANTS
from verify.gate import GateOutcome
from verify.packed_proof import summarise
from verify.subjects.faulty import FaultySubject

CASES = tiny_cases(257, 0)
FORWARD = ("log-probs", "ref log-probs", "rewards, margins, loss", "gradients")
OF_EXAMPLES = ("log-probs", "rewards, margins, loss", "gradients")
OBJECTIVE = ("rewards, margins, loss", "gradients")
GRADIENTS = ("gradients",)

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "prompts-merged-one-token-too-far": FORWARD,
    "responses-merged-one-token-too-far": FORWARD,
    "positions-from-parent-alone": OF_EXAMPLES,
    "attends-to-parent-only": OF_EXAMPLES,
    "attends-to-root-only": OF_EXAMPLES,
    "deep-siblings-not-isolated": OF_EXAMPLES,
    "inner-segments-detached": GRADIENTS,
    "deep-neighbour-predicts": OF_EXAMPLES,
    "end-inside-the-tree-not-counted": OBJECTIVE,
    "shared-token-gradient-once": GRADIENTS,
    "equal-responses-merged": OBJECTIVE,
    "sixth-level-one-late": FORWARD,
    "equal-ends-merged": OF_EXAMPLES,
    "first-negative-only": OBJECTIVE,
    "pairs-zipped": OBJECTIVE,
    "responses-read-in-twos": OBJECTIVE,
    "margins-averaged-first": OBJECTIVE,
    "rewards-sorted": ("rewards, margins, loss",),
    "reference-of-next-response": OBJECTIVE,
    "later-responses-detached": GRADIENTS,
    "first-positive-for-all": OBJECTIVE,
    "mean-over-pairs-of-the-batch": OBJECTIVE,
    "divided-by-most-pairs": OBJECTIVE,
    "third-positive-and-later-dropped": OBJECTIVE,
    "fifth-negative-and-later-dropped": OBJECTIVE,
    "equal-responses-weigh-once": OBJECTIVE,
    "groups-alike-read-by-sides": OBJECTIVE,
    "groups-of-one-prompt-merged": OBJECTIVE,
    "masked-tokens-replaced": OF_EXAMPLES,
    "examples-one-per-row": ("packed path ran",),
    "positions-run-on-over-examples": (),
    "positions-restart-at-turns": OF_EXAMPLES,
    "examples-attend-to-those-before": OF_EXAMPLES,
    "recurrent-state-over-examples": OF_EXAMPLES,
    "convolution-over-examples": OF_EXAMPLES,
    "target-across-examples": OBJECTIVE,
    "first-token-of-an-example-targeted": OBJECTIVE,
    "end-of-example-not-counted": OBJECTIVE,
    "everything-supervised": OBJECTIVE,
    "user-turns-supervised": OBJECTIVE,
    "mask-one-late": OBJECTIVE,
    "padding-in-the-loss": (*OBJECTIVE, "packed path ran"),  # a row for each example, to have padding
    "token-mean-for-example-mean": OBJECTIVE,
    "example-mean-for-token-mean": OBJECTIVE,
    "mean-of-row-means": OBJECTIVE,
    "all-tokens-in-the-denominator": OBJECTIVE,
    "labels-cut-at-64": OBJECTIVE,
    "end-of-inner-turns-not-counted": OBJECTIVE,
    "fourth-span-and-later-dropped": OBJECTIVE,
    "mask-of-first-holder": OBJECTIVE,
    "labels-kept-by-text": OBJECTIVE,
    "group-cut-at-the-limit": OF_EXAMPLES,
    "padding-attended": OF_EXAMPLES,
    "first-mask-for-all-bins": FORWARD,
    "results-in-order-of-rows": ("log-probs",),  # the token mean does not ask whose a token is
    "last-bin-dropped": OBJECTIVE,
}
"""On the smallest case that shows the fault; none where only exact checks see it."""
CONTROLS = tuple(
    m
    for m in CATALOGUE
    if not isinstance(m, Fault) and (m in LAYOUT_MUTANTS or len(m.kinds) > 1) and biting_cases(m, CASES, at_most=1)
)


@pytest.fixture(scope="module")
def kills(gate: Callable[..., GateOutcome]) -> Mapping[str, Kill]:
    from verify.fault_grounds import OBJECTIVE as SETTINGS

    cases_of: dict[Mutation, int] = {**{mutation_named(name): 1 for name in CAUGHT_BY}, **dict.fromkeys(CONTROLS, 3)}
    chosen = {m: frozenset(case.name for case in biting_cases(m, CASES, number)) for m, number in cases_of.items()}
    subjects = [FaultySubject(mutation=mutation, cases=names) for mutation, names in chosen.items()]
    used = frozenset.union(*chosen.values())
    run = gate(subjects, [c for c in CASES if c.name in used], objective=SETTINGS, variations=("eager", "padded-left"))
    summaries = summarise(run.results, subjects, ["float32"])
    return {m.name: kill_of(m, s) for m, s in zip(chosen, summaries, strict=True)}


def test_every_fault_of_these_layouts_is_here() -> None:
    modules = (prefix_trees, larger_groups, examples, labels, bins)
    assert list(CAUGHT_BY) == [fault.name for module in modules for fault in module.FAULTS]


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_fault_is_killed_by_the_checks_that_can_see_it_and_no_other(kills: Mapping[str, Kill], name: str) -> None:
    kill = kills[name]
    assert kill.outcome is Outcome.KILLED, kill.reasons
    assert kill.caught_by == CAUGHT_BY[name]
    if kill.caught_by not in ((), ("packed path ran",)):
        assert kill.weakest_margin > 10


@pytest.mark.parametrize("mutant", CONTROLS, ids=lambda mutant: mutant.name)
def test_a_harmless_variation_is_left_alone(kills: Mapping[str, Kill], mutant: Mutation) -> None:
    assert kills[mutant.name].outcome is Outcome.QUIET, kills[mutant.name].reasons


def test_each_kind_of_case_has_its_turn_in_a_harmless_variation(kills: Mapping[str, Kill]) -> None:
    kinds = {case.name: case.kind for case in CASES}
    for mutant in CONTROLS:
        if mutant.kinds == ("pairs", "groups", "examples"):
            assert len({kinds[name] for name in kills[mutant.name].cases}) > 1, mutant.name

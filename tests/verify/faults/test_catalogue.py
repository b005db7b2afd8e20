"""The catalogue is whole: every public report accounted for, every stage hit, every fault shown by a default case."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from verify.cases import Case
from verify.checks.check import EXACT_CHECK_NAMES
from verify.default_cases.images import image_cases
from verify.default_cases.objectives import objective_cases
from verify.default_cases.references import reference_cases
from verify.default_cases.tiny import tiny_cases
from verify.fault_grounds import OBJECTIVE
from verify.faults import content_conditions, frozen_policy, images, layout_conditions, objective_conditions
from verify.faults.catalogue import (
    CATALOGUE,
    FAULTS,
    FAULTS_OF_EVERY_WEIGHT,
    FAULTS_OF_IMAGES,
    FAULTS_OF_OBJECTIVES,
    FAULTS_OF_REFERENCES,
    FAULTS_OF_REWARDS,
    FAULTS_OF_ROUTERS,
    FAULTS_OF_WINDOWS,
    biting_cases,
    mutation_named,
)
from verify.faults.controls import EQUIVALENT_MUTANTS
from verify.faults.exact_claims import EXACT_CLAIMS
from verify.faults.fault import CHECKS, Fault, Mutation
from verify.faults.kernels import NOISY_KERNELS
from verify.faults.stages import STAGES, STAGES_OF_REWARDS
from verify.groups import PreferenceGroup
from verify.images import ImageFormat

IMAGES = ImageFormat((3, 4, 4), token_id=257, num_tokens=2)
CASES, OF_OBJECTIVES, OF_IMAGES = tiny_cases(257, 0), objective_cases(257, 0), image_cases(257, 0, IMAGES)
OVER_OTHERS = reference_cases(257, 0)
ALL_FAULTS = (
    *FAULTS,
    *FAULTS_OF_OBJECTIVES,
    *FAULTS_OF_REWARDS,
    *FAULTS_OF_REFERENCES,
    *FAULTS_OF_IMAGES,
    *FAULTS_OF_ROUTERS,
    *FAULTS_OF_WINDOWS,
    *FAULTS_OF_EVERY_WEIGHT,
)
UNSEEN = {fault.name for fault in ALL_FAULTS if "bfloat16" not in fault.dtypes}
PUBLIC = {f"A{number:02}" for number in range(1, 90)}
DOCS = (Path(__file__).parents[3] / "docs" / "faults.md").read_text(encoding="utf-8")


def public_rows() -> dict[str, str]:
    """What docs/faults.md says became of each public report."""
    rows = re.findall(r"^\| (A\d\d) \|.*\| (.*) \|$", DOCS, flags=re.MULTILINE)
    assert len(rows) == len({entry for entry, _ in rows})
    return dict(rows)


def test_names_are_distinct_and_stable_ids() -> None:
    names = [mutation.name for mutation in CATALOGUE]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)


def test_there_are_many_faults_and_some_at_every_stage() -> None:
    assert len(FAULTS) >= 50
    assert {fault.stage for fault in FAULTS} == set(STAGES) - {*STAGES_OF_REWARDS, "routers", "window"}
    assert {fault.stage for fault in FAULTS_OF_REWARDS} >= set(STAGES_OF_REWARDS)


def test_every_fault_says_what_it_is_and_what_must_catch_it() -> None:
    for fault in ALL_FAULTS:
        assert fault.what.endswith("."), fault.name
        assert fault.signature, fault.name
        assert fault.must_kill, fault.name
        assert set(fault.must_kill) <= set(CHECKS), fault.name
    assert all(mutant.why_equal for mutant in EQUIVALENT_MUTANTS)


def test_every_exact_check_is_named_for_a_fault_and_every_fault_it_is_named_for_is_there() -> None:
    by_name = {fault.name: fault for fault in ALL_FAULTS}
    for check, names in EXACT_CLAIMS.items():
        assert len(set(names)) == len(names), check
        assert all(check in by_name[name].must_kill for name in names), check
    assert set(EXACT_CHECK_NAMES) <= {check for fault in FAULTS for check in fault.must_kill}
    assert all(len(set(fault.must_kill)) == len(fault.must_kill) for fault in ALL_FAULTS)


def test_no_two_mutations_replace_a_stage_by_the_same_thing() -> None:
    replacements = [(m.stage, repr(m.replacement), m.packing, type(m), m.of_rewards) for m in CATALOGUE]
    assert len(set(replacements)) == len(replacements)


@pytest.mark.parametrize("mutation", CATALOGUE, ids=lambda mutation: mutation.name)
def test_a_mutation_is_a_value_that_pickles(mutation: Mutation) -> None:
    again = pickle.loads(pickle.dumps(mutation))  # ours, made a line above
    assert (again.name, again.stage, again.bites_where) == (mutation.name, mutation.stage, mutation.bites_where)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_every_mutation_bites_on_a_default_case(seed: int) -> None:
    cases = (*tiny_cases(257, seed), *objective_cases(257, seed), *reference_cases(257, seed))
    cases = (*cases, *image_cases(257, seed, IMAGES))
    assert [m.name for m in CATALOGUE if not biting_cases(m, cases, 3)] == []


CONDITIONS: dict[str, Callable[[Case], bool]] = {
    "a one-token prompt": lambda case: any(len(group.prompt_ids) == 1 for group in case.groups),
    "a one-token chosen response": lambda case: any(len(group.positives[0]) == 1 for group in case.groups),
    "a one-token rejected response": lambda case: any(len(group.negatives[0]) == 1 for group in case.groups),
    "a pair without neighbours": lambda case: len(case.groups) == 1,
    "two groups in a row": lambda case: len(case.groups) == 2,
    "an odd number of groups, three or more": lambda case: len(case.groups) > 2 and len(case.groups) % 2 == 1,
    "a prompt beyond position 256": lambda case: any(len(group.prompt_ids) > 256 for group in case.groups),
    "a response beyond position 256 behind a short prompt": lambda case: any(
        len(group.prompt_ids) < 256 < len(group.prompt_ids) + len(ids)
        for group in case.groups
        for ids in group.negatives
    ),
    "a response longer than its prompt": lambda case: any(
        len(ids) > len(group.prompt_ids) for group in case.groups for ids in group.completions
    ),
    **{
        f"a branch that starts at slot {length}": lambda case, length=length: len(case.groups[0].prompt_ids) == length
        for length in (127, 128, 129)
    },
    "responses of one length": lambda case: all(len(g.positives[0]) == len(g.negatives[0]) for g in case.groups),
    "responses of very unequal length": lambda case: any(
        len(g.negatives[0]) > 20 * len(g.positives[0]) for g in case.groups
    ),
    "responses that begin alike": lambda case: any(g.positives[0][:3] == g.negatives[0][:3] for g in case.groups),
    "an end token inside a response": lambda case: any(
        ids[-1] in ids[:-1] for group in case.groups for ids in group.completions
    ),
    "the padding id as a word": lambda case: any(0 in ids for group in case.groups for ids in group.completions),
}
"""What the public reports name as the condition under which they bite."""


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_default_cases_meet_every_condition_that_the_public_reports_name(condition: str, seed: int) -> None:
    assert [case.name for case in tiny_cases(257, seed) if case.kind == "pairs" and CONDITIONS[condition](case)] != []


def test_no_option_of_the_objective_is_at_the_value_that_hides_its_absence() -> None:
    assert OBJECTIVE.beta != 1.0
    assert 0 < OBJECTIVE.label_smoothing < 0.5


ALONE = Case(
    name="alone", why="one example", groups=(PreferenceGroup((1, 2), ((3, 4),)),), objective_name="sft-token-mean"
)


ANY_KIND = tuple(
    module.__name__ for module in (layout_conditions, content_conditions, objective_conditions, frozen_policy, images)
)


def test_conditions_tell_cases_apart() -> None:
    """A condition that held everywhere, or nowhere, would say nothing."""
    conditional = {m.bites_where.words: m.bites_where for m in CATALOGUE if m.bites_where.words != "everywhere"}
    assert len(conditional) > 15
    for words, condition in conditional.items():
        any_kind = condition.holds.__module__ in ANY_KIND  # others are asked of pairs only
        asked = [
            case
            for case in (*CASES, *OF_OBJECTIVES, *OVER_OTHERS, *OF_IMAGES, ALONE)
            if any_kind or case.kind == "pairs"
        ]
        held = [case.name for case in asked if condition.holds(case)]
        assert 0 < len(held) < len(asked), words


def test_the_smallest_biting_cases_are_chosen() -> None:
    fault = mutation_named("window-in-row-slots")
    assert [case.name for case in biting_cases(fault, CASES, 2)] == ["length-127", "length-128"]
    assert biting_cases(fault, CASES[:4], 2) == ()


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown fault 'causal-mask': did you mean .*causal-mask-only"):
        mutation_named("causal-mask")


# The public list.


def test_every_public_report_is_planted_or_explained() -> None:
    rows = public_rows()
    assert set(rows) == PUBLIC
    assert {entry for m in CATALOGUE for entry in m.imitates} <= PUBLIC
    for entry, became in rows.items():
        planted = {m.name for m in (*CATALOGUE, *NOISY_KERNELS) if entry in m.imitates}
        if planted:
            assert set(re.findall(r"`([^`]+)`", became)) == planted, entry
        else:
            assert became.startswith("not planted: "), entry
            assert len(became) > 40, entry


def test_most_public_reports_are_planted_as_faults() -> None:
    assert len({entry for fault in FAULTS for entry in fault.imitates}) >= 70


def test_every_mutation_is_described_in_the_docs() -> None:
    for mutation in CATALOGUE:
        row = next((line for line in DOCS.splitlines() if line.startswith(f"| `{mutation.name}` |")), "")
        assert mutation.what in row, mutation.name
        assert mutation.bites_where.words in row, mutation.name
        reason = mutation.signature if isinstance(mutation, Fault) else getattr(mutation, "why_equal", "")
        assert reason in row, mutation.name
        assert mutation.name not in UNSEEN or "bfloat16" in row, mutation.name
    for kernel in NOISY_KERNELS:
        row = next(line for line in DOCS.splitlines() if line.startswith(f"| `{kernel.name}` |"))
        assert kernel.what in row
        assert kernel.why_harmless in row
        assert tuple(re.findall(r"`([^`]+)`", row)) == (kernel.name, *kernel.planted)


def test_the_docs_name_no_mutation_that_is_not_there() -> None:
    tables = DOCS[DOCS.index("## Planted faults") : DOCS.index("## The public list")]
    named = re.findall(r"^\| `([^`]+)` \|", tables, flags=re.MULTILINE)
    assert named == [*(m.name for m in CATALOGUE), *(kernel.name for kernel in NOISY_KERNELS)]


def test_what_rounding_hides_is_said_of_the_fault_itself() -> None:
    """Data and words agree, and the sharp dtypes are never among those that hide."""
    for fault in ALL_FAULTS:
        assert {"float64", "float32"} <= set(fault.dtypes), fault.name
        assert ("bfloat16" in fault.invisible_where) == (fault.name in UNSEEN), fault.name

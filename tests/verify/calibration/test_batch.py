"""A batch follows from seed and number alone, and holds what it must."""

from __future__ import annotations

from collections import Counter

import pytest

from verify.calibration import batch as batch_module
from verify.calibration.batch import RUN_SIZES, Batch, batch_sizes, draw_batch
from verify.cases import Case
from verify.faults.catalogue import mutation_named
from verify.faults.fault import EquivalentMutant
from verify.groups import PreferenceGroup
from verify.subjects.faulty import FaultySubject
from verify.tolerance import Policy

DTYPES = ("float64", "float32", "bfloat16")


@pytest.fixture(scope="module")
def batches(policy: Policy) -> list[Batch]:
    return [draw_batch(3, number, DTYPES, policy) for number in range(24)]


def test_a_batch_is_drawn_again_from_its_number(batches: list[Batch], policy: Policy) -> None:
    assert draw_batch(3, 17, DTYPES, policy) == batches[17]
    assert draw_batch(4, 17, DTYPES, policy).request.cases != batches[17].request.cases


def test_sizes_are_those_of_the_batches_and_reach_the_number_of_cases(batches: list[Batch]) -> None:
    sizes = batch_sizes(3, 100)
    assert [len(batch.request.cases) for batch in batches] == list(batch_sizes(3, 10_000)[:24])
    assert sum(sizes) >= 100 > sum(sizes[:-1])
    assert batch_sizes(3, 500)[: len(sizes)] == sizes
    assert set(batch_sizes(3, 500)) == set(RUN_SIZES)


def test_batches_take_the_dtypes_in_turn_and_differ_in_weights_and_objective(batches: list[Batch]) -> None:
    assert Counter(batch.request.dtypes for batch in batches) == {(dtype,): 8 for dtype in DTYPES}
    assert len({batch.request.model.seed for batch in batches}) == 24
    betas = [batch.request.objective.beta for batch in batches]
    assert min(betas) < 0.03
    assert max(betas) > 0.3
    smoothings = [batch.request.objective.label_smoothing for batch in batches]
    assert 0.0 in smoothings
    assert max(smoothings) > 0.2


def test_honest_are_packed_subjects_and_equivalent_mutants_and_the_rest_are_faults(batches: list[Batch]) -> None:
    for batch in batches:
        for subject in batch.request.subjects:
            honest = batch.populations[subject.name] == "honest"
            if isinstance(subject, FaultySubject):
                assert subject.mutation is not None
                assert honest == isinstance(subject.mutation, EquivalentMutant)
                assert subject.mutation.replacement == mutation_named(subject.mutation.name).replacement
            else:
                assert honest


def test_trees_are_shifted_over_any_distance() -> None:
    """The noise floor moves sequences as far as a row may place them: 200 slots here, more than the control allows."""
    first, last = PreferenceGroup((1,) * 100, ((2,) * 50,), ((3,) * 50,)), PreferenceGroup((1,), ((2,),), ((3,),))
    case = Case(name="far", why="the second tree starts at slot 200", groups=(first, last))
    (mutant,) = (mutant for mutant in batch_module._MUTANTS if mutant.name == "positions-shifted-by-tree")
    assert mutant.bites(case)
    assert not mutant.bites(Case(name="near", why="one tree, which is not shifted", groups=(first,)))


def test_mutations_run_only_where_a_case_can_show_them(batches: list[Batch]) -> None:
    seen = 0
    for batch in batches:
        cases = {case.name: case for case in batch.request.cases}
        for subject in batch.request.subjects:
            if isinstance(subject, FaultySubject) and subject.mutation is not None and subject.cases is not None:
                assert subject.cases
                assert all(subject.mutation.bites(cases[name]) for name in subject.cases)
                seen += 1
                if batch.request.objective.label_smoothing == 0 and batch.populations[subject.name] == "fault":
                    assert subject.mutation.stage != "objective"
    assert seen > 40

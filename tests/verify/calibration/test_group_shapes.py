"""Random groups and examples: the same from the same seed, with trees, masks and one-token parts among them."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

import verify
from verify.calibration.batch import draw_batch
from verify.calibration.group_shapes import GroupCaseShape, GroupShape, draw_group_shapes, make_group_case
from verify.calibration.kinds import DrawnKind, case_kind
from verify.cases import Case
from verify.objective import PREFERENCE_NAMES
from verify.tolerance import load_policy

ROOT = Path(verify.__file__).resolve().parents[1]
KINDS: tuple[DrawnKind, ...] = ("groups", "examples", "objectives")


def drawn(kind: DrawnKind) -> list[Case]:
    return [
        make_group_case(f"{seed}-{place}", shape, 31, random.Random(place))
        for seed in (5, 11)
        for place, shape in enumerate(draw_group_shapes(kind, seed, 40))
    ]


def test_a_seed_gives_the_same_shapes_in_a_process_that_has_imported_next_to_nothing() -> None:
    program = "from verify.calibration.group_shapes import draw_group_shapes as d; print(d('groups', 11, 20))"
    fresh = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert fresh.stdout.strip() == repr(draw_group_shapes("groups", 11, 20))


@pytest.mark.parametrize("kind", KINDS)
def test_every_case_is_of_its_kind_and_no_two_responses_of_a_group_are_equal(kind: DrawnKind) -> None:
    for case in drawn(kind):
        wanted = case_kind(kind)
        assert case.kind == wanted or (wanted == "groups" and all(group.is_pair for group in case.groups))
        assert all(len(set(group.completions)) == len(group.completions) for group in case.groups)


def test_trees_of_several_levels_and_uneven_groups_are_among_the_groups() -> None:
    groups = [case.groups for case in drawn("groups")]
    assert any(len({len(group.completions) for group in of_case}) > 1 for of_case in groups)
    assert {len(of_case) for of_case in groups} == {1, 2, 3, 4}
    depths = []
    for group in (group for of_case in groups for group in of_case):
        shared = {
            next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
            for x, y in combinations(group.completions, 2)
        }
        depths.append(len(shared - {0}))
    assert max(depths) >= 3


def test_examples_come_masked_and_unmasked_with_both_means_and_with_several_responses() -> None:
    cases = drawn("examples")
    groups = [group for case in cases for group in case.groups]
    assert {case.objective_name for case in cases} == {"sft-token-mean", "sft-example-mean"}
    assert any(not all(mask) for group in groups for mask in group.completion_masks)
    assert any(not group.completion_masks for group in groups)
    assert all(mask[-1] for group in groups for mask in group.completion_masks)
    assert {len(group.negatives) for group in groups} == {0}
    assert max(len(group.positives) for group in groups) > 1


def test_every_preference_objective_is_drawn_on_masked_and_unmasked_groups() -> None:
    cases = drawn("objectives")
    assert {case.objective_name for case in cases} == set(PREFERENCE_NAMES)
    assert {bool(group.completion_masks) for case in cases for group in case.groups} == {True, False}


def test_a_prompt_of_two_kinds_of_token_holds_both() -> None:
    shape = GroupCaseShape((GroupShape(1, (1,), (1,)),), "two-tokens", False, "sigmoid")
    (group,) = make_group_case("a", shape, 31, random.Random(0)).groups
    assert len(set(group.prompt_ids)) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_holds_subjects_that_take_its_kind(kind: DrawnKind) -> None:
    batch = draw_batch(3, 7, ("float64",), load_policy(None), kind)
    assert batch == draw_batch(3, 7, ("float64",), load_policy(None), kind)
    honest = [s for s in batch.request.subjects if batch.populations[s.name] == "honest"]
    assert len(honest) >= 3
    assert all(case_kind(kind) in subject.takes for subject in honest if hasattr(subject, "takes"))

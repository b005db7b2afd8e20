"""What is planted, where and at what cost; no model runs here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from verify.cases import CASE_KINDS, Case, CaseKind
from verify.default_cases.real_size import synthetic_cases
from verify.default_cases.tiny import tiny_cases
from verify.faults.fault import BINS, BLOCK_DIAGONAL, PREFIX_TREE
from verify.faults.stages import STAGES
from verify.gate import GateRequest
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.proof_of_life.findings import notes_of
from verify.proof_of_life.planting import choose_plantings, slots_in_passes
from verify.proof_of_life.probes import PROBES, PROBES_OF_REWARDS, PROBES_OF_ROUTERS, PROBES_OF_WINDOWS, Probe
from verify.subjects.packed import PACKED_SUBJECTS
from verify.subjects.selection import select_subject
from verify.tolerance import Policy

CASES = tiny_cases(257, seed=0)
LAYOUTS = (PREFIX_TREE, BLOCK_DIAGONAL, BINS)


class Takes:
    """A subject of one kind of case."""

    name = "mine"

    def __init__(self, kind: CaseKind) -> None:
        self.takes = (kind,)

    def per_token_logps(self, model: object, groups: object) -> list[Tensor]:
        raise AssertionError("no model runs here")


@pytest.fixture
def request_(policy: Policy) -> GateRequest:
    return GateRequest(
        model=ModelRequest(name="tiny"), dtypes=("float32",), subjects=PACKED_SUBJECTS, cases=CASES,
        objective=Preference(), policy=policy,
    )  # fmt: skip


def packed_slots(case: Case) -> int:
    return sum(len(ids) for g in case.groups for ids in (g.prompt_ids, *g.completions))


def test_every_stage_of_the_packed_step_has_a_probe_and_none_has_two_names() -> None:
    every = (*PROBES, *PROBES_OF_REWARDS, *PROBES_OF_ROUTERS, *PROBES_OF_WINDOWS)
    assert {probe.mutation.stage for probe in every} == set(STAGES)
    assert len({probe.fault for probe in every}) == len(every)


def test_on_the_default_cases_every_probe_is_planted_on_the_smallest_case_that_shows_it(request_: GateRequest) -> None:
    plantings = choose_plantings(request_, vocab_size=257, num_layers=2, is_tiny=True)
    assert [planting.probe for planting in plantings.chosen] == list(PROBES)
    assert plantings.left_out == {}
    for planting in plantings.chosen:
        biting = [case for case in CASES if planting.probe.mutation.bites(case)]
        assert planting.case == min(biting, key=lambda case: (case.pairwise_slots, case.name)).name
        for case in CASES:
            assert planting.subject.supports(case).supported == (case.name == planting.case)


def test_gradients_are_computed_only_where_nothing_else_would_show_the_fault(request_: GateRequest) -> None:
    for planting in choose_plantings(request_, vocab_size=257, num_layers=2, is_tiny=True).chosen:
        wanted = planting.probe.seen_in == "gradients"
        assert planting.subject.supports_gradients(None).supported is wanted


def test_a_fault_that_no_case_can_show_is_not_planted(request_: GateRequest) -> None:
    one_pair = replace(request_, cases=tuple(case for case in CASES if case.name == "balanced"))
    names = {
        planting.probe.fault
        for planting in choose_plantings(one_pair, vocab_size=257, num_layers=2, is_tiny=True).chosen
    }
    assert {probe.fault for probe in PROBES} - names == {
        "trees-not-isolated", "positions-in-bfloat16", "sum-over-groups", "third-tree-sees-second",
        *(probe.fault for probe in PROBES if probe.mutation.packing in LAYOUTS or probe.mutation.kinds == ("groups",)),
    }  # fmt: skip


def test_a_fault_between_layers_is_not_planted_in_a_model_of_one(request_: GateRequest) -> None:
    names = {
        layers: {
            p.probe.fault for p in choose_plantings(request_, vocab_size=257, num_layers=layers, is_tiny=True).chosen
        }
        for layers in (1, 2)
    }
    assert names[2] - names[1] == {"first-layer-without-gradient"}


def test_faults_of_a_window_are_planted_where_some_case_is_longer_than_it(request_: GateRequest) -> None:
    of_windows = {probe.fault for probe in PROBES_OF_WINDOWS}
    without = choose_plantings(request_, vocab_size=257, num_layers=2, is_tiny=True)
    short = choose_plantings(request_, vocab_size=257, num_layers=2, is_tiny=True, window=8)
    long = choose_plantings(request_, vocab_size=257, num_layers=2, is_tiny=True, window=4096)
    assert not of_windows & {planting.probe.fault for planting in without.chosen}
    assert of_windows <= {planting.probe.fault for planting in short.chosen}
    assert not of_windows & {planting.probe.fault for planting in long.chosen}
    assert {long.left_out[name] for name in of_windows} == {"no case is long enough for a window of 4096 tokens"}


def test_a_planted_fault_is_no_namesake_of_a_fault_that_was_asked_for(request_: GateRequest) -> None:
    asked = replace(request_, subjects=tuple(select_subject(f"fault:{probe.fault}") for probe in PROBES))
    planted = choose_plantings(asked, vocab_size=257, num_layers=2, is_tiny=True).subjects
    assert len({subject.name for subject in (*asked.subjects, *planted)}) == 2 * len(PROBES)


@pytest.mark.parametrize("num_subjects", [1, 2])
@pytest.mark.parametrize("dtypes", [("float32",), ("float64", "float32", "bfloat16")])
def test_on_a_large_model_planted_faults_add_at_most_a_fifth(
    request_: GateRequest, dtypes: tuple[str, ...], num_subjects: int
) -> None:
    (case,) = synthetic_cases(151_936, seed=0)
    subjects = tuple(select_subject(name) for name in ("dense-sdpa", "split"))[:num_subjects]
    run = replace(request_, cases=(case,), subjects=subjects, dtypes=dtypes, variations=("eager", "padded-left"))
    plantings = choose_plantings(run, vocab_size=151_936, num_layers=2, is_tiny=False)
    assert plantings.chosen[0].probe is PROBES[0]
    # Passes counted by hand: the oracle's three count twice, since they are in float64, and once for all dtypes.
    unpacked, packed = case.pairwise_slots, packed_slots(case)
    without = 3 * (2 * unpacked + len(dtypes) * (3 * unpacked + num_subjects * packed))
    assert slots_in_passes(run) == without
    added = sum((3 if planting.subject.gradients else 2) * packed * len(dtypes) for planting in plantings.chosen)
    assert plantings.cost == pytest.approx(added / without)
    assert 0.05 < plantings.cost <= 0.2
    assert len(plantings.chosen) + len(plantings.left_out) == 14  # one needs 258 positions, one three groups


def test_where_logits_would_not_fit_nothing_is_planted_and_the_notes_say_why(request_: GateRequest) -> None:
    plantings = choose_plantings(request_, vocab_size=10**9, num_layers=2, is_tiny=False)
    assert plantings.chosen == ()
    assert set(plantings.left_out) == {probe.fault for probe in PROBES}
    notes = notes_of(plantings)
    assert any("the logits of case one-token-responses take 70.8 GiB" in note for note in notes)
    assert not any(note.startswith("faults planted") for note in notes)


def test_the_passes_of_a_subject_count_only_on_cases_that_it_takes(
    request_: GateRequest, third_party: Callable[[str], object]
) -> None:
    several = [case for case in CASES if len(case.groups) > 1 and case.kind != "examples"]
    of = {s.name: slots_in_passes(replace(request_, subjects=(s,))) for s in PACKED_SUBJECTS}
    left_out = sum(packed_slots(case) for case in CASES if case not in several and case.kind != "examples")
    of_examples = ("rollouts-of-one-prompt", "conversation-turn-by-turn")  # where prompts are shared
    shared = sum(packed_slots(case) for case in CASES if case.name in of_examples)
    assert of["dense-sdpa"] - of["dense-sdpa/row-per-group"] == 3 * left_out + 2 * shared


@pytest.mark.parametrize("kind", CASE_KINDS)
def test_faults_are_planted_only_on_kinds_of_case_that_some_subject_takes(
    request_: GateRequest, kind: CaseKind
) -> None:
    run = replace(request_, subjects=(Takes(kind),))
    chosen = choose_plantings(run, vocab_size=257, num_layers=2, is_tiny=True).chosen
    assert {case.kind for case in CASES for planting in chosen if planting.case == case.name} == {kind}
    assert {planting.probe for planting in chosen} == {
        probe for probe in PROBES if any(case.kind == kind and probe.mutation.bites(case) for case in CASES)
    }


def test_under_a_window_a_fault_is_planted_where_the_window_leaves_something_of_it(request_: GateRequest) -> None:
    """A turn between root and branch that is longer than the window hides from the branch that its root is hidden."""

    def case_of(window: int | None) -> str | None:
        plantings = choose_plantings(request_, vocab_size=257, num_layers=2, is_tiny=True, window=window)
        return next((p.case for p in plantings.chosen if p.probe.fault == "attends-to-parent-only"), None)

    assert case_of(None) == case_of(100) == "rollouts-of-one-prompt"  # its turn has 11 tokens
    assert case_of(12) != case_of(13) == "rollouts-of-one-prompt"
    assert case_of(8) == "tree-of-turns"  # the smallest of those that are left
    assert case_of(1) is None


@pytest.mark.parametrize(
    ("may_hide", "hides"),
    [
        ("nowhere", (False, False, False, False)),
        ("in bfloat16", (False, True, False, True)),
        ("beyond tiny", (False, True, True, True)),
        ("in bfloat16 beyond tiny", (False, False, False, True)),
    ],
)
def test_where_rounding_may_hide_a_planted_fault(may_hide: Any, hides: tuple[bool, ...]) -> None:
    """In float32 and bfloat16 of the tiny model, then of others; autocast rounds as bfloat16 does."""
    probe = Probe("neighbour-predicts", may_hide=may_hide)
    asked = [(dtype, is_tiny) for is_tiny in (True, False) for dtype in ("float32", "bfloat16")]
    assert tuple(probe.may_hide_in(dtype, is_tiny=is_tiny) for dtype, is_tiny in asked) == hides
    assert probe.may_hide_in("autocast-bfloat16", is_tiny=False) == hides[3]

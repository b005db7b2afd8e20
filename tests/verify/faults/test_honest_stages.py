"""With nothing replaced the stages compute every kind of case in every layout, and are then the packed subjects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from verify.cases import CASE_KINDS, Case
from verify.default_cases.tiny import tiny_cases
from verify.faults.catalogue import mutation_named
from verify.faults.fault import Packing
from verify.gate import GateOutcome
from verify.models.request import ModelRequest
from verify.subjects.faulty import FaultySubject
from verify.subjects.packed import PackedSubject
from verify.verdict import Verdict

CASES = tuple(case for case in tiny_cases(257, 0) if case.kind != "pairs")
PACKINGS = (
    Packing(),
    Packing(segments="repeat-prompt-token"),
    Packing(segments="prefix-tree"),
    Packing(segments="block-diagonal"),
    Packing(rows="row-per-group"),
    Packing(rows="bins"),
    Packing(segments="block-diagonal", rows="bins"),
)


def honest(packing: Packing) -> FaultySubject:
    mutation = mutation_named("nothing-replaced")
    return FaultySubject(mutation=replace(mutation, name=f"{packing.segments}-{packing.rows}", packing=packing))


@pytest.fixture(scope="module")
def outcome(gate: Callable[..., GateOutcome]) -> GateOutcome:
    return gate([FaultySubject(), *map(honest, PACKINGS)], CASES, variations=("eager", "padded-left"))


def test_every_kind_of_case_passes_in_every_layout(outcome: GateOutcome) -> None:
    assert {case.kind for case in CASES} == set(CASE_KINDS) - {"pairs"}
    assert len(outcome.results) == len(CASES) * (len(PACKINGS) + 1)
    assert {(r.subject, r.case): r.reasons for r in outcome.results if r.verdict is not Verdict.PASS} == {}


def test_a_sliding_window_of_the_model_is_kept(gate: Callable[..., GateOutcome]) -> None:
    """Half as long as a prompt or less, so that a mask without it would be off by nats."""
    model = ModelRequest(name="tiny-mistral", num_layers=1)
    cases = tuple(case for case in CASES if case.name in ("groups-masked", "rollouts-of-one-prompt"))
    outcome = gate([FaultySubject(), honest(Packing(segments="prefix-tree"))], cases, model=model)
    assert [result.verdict for result in outcome.results] == [Verdict.PASS] * 4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("packing", PACKINGS, ids=lambda packing: f"{packing.segments}-{packing.rows}")
def test_the_rows_are_those_of_the_packed_subject(case: Case, packing: Packing) -> None:
    """But for the tokens that no loss counts, which the stages leave out of what enters a sum."""
    staged = honest(packing).packed_rows(case.groups)
    packed = PackedSubject(backend="dense-sdpa", segments=packing.segments, rows=packing.rows).packed_rows(case.groups)
    assert staged.input_ids.tolist() == packed.input_ids.tolist()
    assert staged.position_ids.tolist() == packed.position_ids.tolist()
    assert staged.attended.tolist() == packed.attended.tolist()
    counted = [
        place in supervised
        for group in case.groups
        for ids, supervised in zip(group.completions, group.supervised, strict=True)
        for place in range(len(ids))
    ]
    all_tokens = packed.supervised.tolist()
    if len(all_tokens) == len(counted):
        all_tokens = [token for token, counts in zip(all_tokens, counted, strict=True) if counts]
    assert staged.supervised.tolist() == all_tokens

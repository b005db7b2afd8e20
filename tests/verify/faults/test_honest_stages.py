"""With nothing replaced the stages compute every kind of case in every layout, and are then the packed subjects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from verify.cases import CASE_KINDS, Case
from verify.default_cases.tiny import tiny_cases
from verify.faults.catalogue import mutation_named
from verify.faults.fault import Packing
from verify.faults.rows import Rows
from verify.faults.stages import Forward, Mask, Reference, StageName, TokenLogps
from verify.gate import GateOutcome
from verify.groups import PreferenceGroup
from verify.models.request import ModelRequest, ModelUnderTest
from verify.objective import Preference
from verify.subjects.faulty import FaultySubject
from verify.subjects.honest_stages import honest_stages
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


PAIRS = (
    PreferenceGroup((5, 6, 7), ((8, 9),), ((10,),)),
    PreferenceGroup((11, 12), ((13,),), ((14, 15, 16),)),
)
OTHERS = tuple(replace(group, prompt_ids=(20, *group.prompt_ids)) for group in PAIRS)


def with_replaced(stage: StageName, replacement: Callable[..., Any]) -> FaultySubject:
    return FaultySubject(mutation=replace(mutation_named("nothing-replaced"), stage=stage, replacement=replacement))


def test_a_stage_is_asked_once_for_both_passes_of_a_step(tiny: Callable[[str], ModelUnderTest]) -> None:
    asked: list[Rows] = []

    def mask(honest: Mask, rows: Rows) -> torch.Tensor:
        asked.append(rows)
        return honest(rows)

    with torch.no_grad():
        with_replaced("mask", mask).loss(tiny("float32").model, PAIRS, Preference())
    assert asked == [honest_stages(Packing()).layout(PAIRS)]


def test_a_reference_pass_over_other_rows_is_told_of_those(tiny: Callable[[str], ModelUnderTest]) -> None:
    model, found = tiny("float32").model, []

    def reference(honest: Reference, model: Any, forward: Forward, rows: Rows) -> torch.Tensor:
        found.append(forward(honest_stages(Packing()).layout(OTHERS), {}))
        return honest(model, forward, rows)

    with torch.no_grad():
        with_replaced("reference", reference).loss(model, PAIRS, Preference())
        expected = FaultySubject().per_token_logps(model, OTHERS)
    assert torch.equal(found[0], torch.cat(expected))
    assert not torch.equal(found[0], torch.cat(FaultySubject().per_token_logps(model, PAIRS)).detach())


def test_what_a_replacement_writes_into_in_one_pass_does_not_reach_the_other(
    tiny: Callable[[str], ModelUnderTest],
) -> None:
    def token_logps(honest: TokenLogps, logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return honest(logits, token_ids.add_(1))

    model = tiny("float32").model
    with torch.no_grad():
        step = with_replaced("token_logps", token_logps).loss(model, PAIRS, Preference())
        expected = with_replaced("token_logps", token_logps).per_token_logps(model, PAIRS)
    assert torch.equal(torch.cat(step.per_token_logps), torch.cat(expected))


def test_gradients_are_those_of_parameters_that_stand_for_themselves(tiny: Callable[[str], ModelUnderTest]) -> None:
    """The honest step puts no stand-ins into the model; a stage that hands on what it was given does."""
    model, by_way = tiny("float32").model, []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for subject in (FaultySubject(), with_replaced("gradients", lambda honest, name, parameter, rows: parameter)):
        by_way.append(torch.autograd.grad(subject.loss(model, PAIRS, Preference()).loss, trained))
    assert all(torch.equal(one, other) for one, other in zip(*by_way, strict=True))
    assert all(bool(gradient.any()) for gradient in by_way[0])

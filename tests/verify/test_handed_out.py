"""A third party cannot change what the oracle and every later subject are given."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from verify.cases import Case
from verify.default_cases.tiny import tiny_cases
from verify.frozen_policy import CachedLogps, FrozenAdapter, SeparateModel
from verify.frozen_subject import frozen
from verify.gate import GateRequest, run_gate
from verify.groups import PreferenceGroup
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.subject import SubjectError, support_for
from verify.subjects.pairwise import WITNESS
from verify.tolerance import load_policy
from verify.verdict import Verdict

CASE = next(case for case in tiny_cases(257, 0) if case.name == "two-groups")


def spoil_positives(groups: Any) -> None:
    object.__setattr__(groups[-1], "positives", groups[0].negatives)


def spoil_prompt(groups: Any) -> None:
    object.__setattr__(groups[0], "prompt_ids", list(groups[0].prompt_ids))


def spoil_source(groups: Any) -> None:
    object.__setattr__(groups[0], "source", "elsewhere")


def delete_negatives(groups: Any) -> None:
    object.__delattr__(groups[0], "negatives")


SPOIL = [spoil_positives, spoil_prompt, spoil_source, delete_negatives]


class Spoiler:
    name = "spoiler"

    def __init__(self, spoil: Any = spoil_positives) -> None:
        self.spoil = spoil

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        logps = WITNESS.per_token_logps(model, groups)
        self.spoil(groups)
        return logps

    def loss(self, model: Any, groups: Any, objective: Any) -> Any:
        object.__setattr__(objective, "beta", 3.0)

    def packed_rows(self, groups: Any) -> Any:
        self.spoil(groups)

    def supports(self, case: Any) -> Any:
        self.spoil(case.groups)
        return type("Answer", (), {"supported": True, "reason": ""})


class LogpsOnly:
    name = "spoiler"
    per_token_logps = Spoiler.per_token_logps
    spoil = staticmethod(spoil_positives)


@pytest.mark.parametrize("spoil", SPOIL)
@pytest.mark.parametrize("kind", [tuple, list])
def test_changed_groups_are_the_subjects_error_and_nobody_elses(spoil: Any, kind: type) -> None:
    groups, before = kind(CASE.groups), deepcopy(CASE.groups)
    with pytest.raises(SubjectError, match=r"^subject spoiler changed the groups it was given"):
        frozen(Spoiler(spoil)).packed_rows(groups)  # type: ignore[attr-defined]
    assert tuple(groups) == before
    assert [group.source for group in groups] == [group.source for group in before]


def test_a_list_of_groups_that_was_shortened_is_seen() -> None:
    groups = list(CASE.groups)
    with pytest.raises(SubjectError, match="changed the groups"):
        frozen(Spoiler(lambda given: given.pop())).packed_rows(groups)  # type: ignore[attr-defined]
    assert groups == list(CASE.groups)


def test_a_changed_objective_is_seen() -> None:
    objective = Preference(beta=0.1)
    with pytest.raises(SubjectError, match="changed the objective"):
        frozen(Spoiler()).loss(None, CASE.groups, objective)  # type: ignore[attr-defined]
    assert objective.beta == 0.1


@pytest.mark.parametrize(
    ("reference", "name", "value"),
    [
        (FrozenAdapter("reference"), "adapter", "default"),
        (SeparateModel("another model"), "model", "the policy"),
        (CachedLogps(lambda groups: []), "compute", print),
    ],
)
def test_a_changed_frozen_policy_is_seen(reference: Any, name: str, value: object) -> None:
    class Redirects(Spoiler):
        def loss(self, model: Any, groups: Any, objective: Any) -> Any:
            object.__setattr__(objective.reference, name, value)

    before = getattr(reference, name)
    with pytest.raises(SubjectError, match="changed the objective"):
        frozen(Redirects()).loss(None, CASE.groups, Preference(reference=reference))  # type: ignore[attr-defined]
    assert getattr(reference, name) is before


def test_what_a_subject_writes_into_cached_log_probs_stays_with_it() -> None:
    class Writes(Spoiler):
        def loss(self, model: Any, groups: Any, objective: Any) -> Any:
            objective.reference.look_up(groups)
            for values in objective.reference.known.values():
                values.zero_()

    reference = CachedLogps(lambda groups: [torch.ones(len(ids)) for group in groups for ids in group.completions])
    frozen(Writes()).loss(None, CASE.groups, Preference(reference=reference))  # type: ignore[attr-defined]
    assert all(bool(values.all()) for values in reference.look_up(CASE.groups))


def test_a_case_changed_while_it_is_asked_about_is_seen() -> None:
    before = deepcopy(CASE)
    with pytest.raises(SubjectError, match=r"^subject spoiler changed the case"):
        support_for(frozen(Spoiler()), CASE)
    assert before == CASE


def test_a_subject_that_leaves_them_alone_gets_equal_groups_and_its_answer_through() -> None:
    class Honest:
        name = "honest"

        def per_token_logps(self, model: Any, groups: Any) -> Any:
            return model, groups

    model = object()
    given_model, given = frozen(Honest()).per_token_logps(model, CASE.groups)
    assert given_model is model
    assert given == CASE.groups
    assert all(isinstance(group, PreferenceGroup) for group in given)
    assert not any(one is other for one, other in zip(given, CASE.groups, strict=True))


def test_in_the_gate_the_subject_behind_it_is_judged_on_the_case_as_it_was() -> None:
    case = Case(name="pair", why="small", groups=CASE.groups)
    expected = deepcopy(case)
    subjects = (frozen(LogpsOnly()), WITNESS)
    request = GateRequest(
        model=ModelRequest(name="tiny"),
        dtypes=("float64",),
        subjects=subjects,
        cases=(case,),
        objective=Preference(),
        policy=load_policy(None),
        variations=("eager",),
    )
    spoiler, behind = run_gate(request, lambda *_: None).results
    assert spoiler.verdict is Verdict.ERROR
    assert "changed the groups it was given" in spoiler.reasons[0]
    assert behind.verdict is Verdict.PASS
    assert case == expected

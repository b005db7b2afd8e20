"""Steps that run backward themselves are judged by the gradients that they leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from verify.cases import under
from verify.default_cases.tiny import tiny_cases
from verify.gate import GateRequest, run_gate
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import PREFERENCE_NAMES, Preference, PreferenceName, preference_of
from verify.subject import Subject
from verify.subjects.two_pass import TwoPassLoss, TwoPassSubject
from verify.tolerance import load_policy
from verify.verdict import Verdict

SPLIT = TwoPassSubject(backend="split")


def verdicts(subject: Subject, name: PreferenceName, dtype: str = "float32") -> list[tuple[Verdict, str]]:
    objective = preference_of(name, beta=0.1, label_smoothing=0.1 if name == "robust" else 0.0, nll_weight=None)
    cases = [case for case in tiny_cases(257, 0) if case.name in ("balanced", "groups-of-uneven-size")]
    assert len(cases) == 2
    request = GateRequest(
        model=ModelRequest(name="tiny", lora=LoraSpec(strength=0.3)),
        dtypes=(dtype,),
        subjects=(subject,),
        cases=tuple(under(case, name) for case in cases),
        objective=objective,
        policy=load_policy(None),
    )
    outcome = run_gate(request, lambda *_: None)
    return [(result.verdict, " ".join(result.reasons)) for result in outcome.results]


@pytest.mark.parametrize("name", PREFERENCE_NAMES)
def test_the_two_pass_step_passes_under_every_objective(name: PreferenceName) -> None:
    assert [verdict for verdict, _ in verdicts(SPLIT, name)] == [Verdict.PASS] * 2


@dataclass(frozen=True)
class Changed:
    """The two-pass step with something wrong about its gradients."""

    scale: float | None
    name: str = "changed"
    layout: str = "unpacked"
    takes: tuple[str, ...] = ("pairs", "groups")
    objectives: tuple[str, ...] = PREFERENCE_NAMES

    def per_token_logps(self, model: Any, groups: Any) -> list[torch.Tensor]:
        return SPLIT.per_token_logps(model, groups)

    def loss(self, model: Any, groups: Any, objective: Preference) -> TwoPassLoss:
        done = SPLIT.loss(model, groups, objective)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = None if self.scale is None else parameter.grad * self.scale
        return done


def test_gradients_of_the_wrong_size_fail() -> None:
    for verdict, reason in verdicts(Changed(scale=2.0), "groupdpo-softmax"):
        assert verdict is Verdict.FAIL
        assert "gradients" in reason


def test_backward_done_without_gradients_is_an_error() -> None:
    for verdict, reason in verdicts(Changed(scale=None), "groupdpo-softmax"):
        assert verdict is Verdict.ERROR
        assert "backward_done is True, but nothing that is trained has a gradient" in reason


@dataclass(frozen=True)
class Claims:
    value: object
    loss: torch.Tensor = field(default_factory=lambda: torch.tensor(1.0))
    rewards: tuple[float, ...] = (0.0, 0.0)

    @property
    def backward_done(self) -> object:
        return self.value


def test_backward_done_is_true_or_false() -> None:
    from verify.returned_values import check_loss
    from verify.subject import SubjectError

    loss, _ = check_loss(Claims(True), subject="mine", num_completions=2, differentiable=True)
    assert float(loss) == 1.0
    with pytest.raises(SubjectError, match="carries no graph"):
        check_loss(Claims(False), subject="mine", num_completions=2, differentiable=True)
    with pytest.raises(SubjectError, match="backward_done is 1; it must be True or False"):
        check_loss(Claims(1), subject="mine", num_completions=2, differentiable=True)

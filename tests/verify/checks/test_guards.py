"""What a subject breaks under the checks is a finding of its own and is put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from verify.cases import CASE_KINDS, CaseKind
from verify.checks.bench import Setting
from verify.checks.cases import check_cases
from verify.checks.catalogue import EXACT_CHECKS
from verify.checks.check import Finding
from verify.checks.run import run_checks
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.model_state import Baseline
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.subject import Subject, Support
from verify.subjects.packed import PackedSubject
from verify.verdict import Verdict

Groups = Sequence[PreferenceGroup]
HONEST = PackedSubject(backend="dense-sdpa")


@dataclass(frozen=True)
class Meddler:
    """Does something to the model before it computes the right thing."""

    meddle: Callable[[Any], None]
    name: str = "meddler"

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        self.meddle(model)
        return HONEST.per_token_logps(model, groups)


def leaves(model: Any) -> None:
    raise SystemExit(0)


def trains(model: Any) -> None:
    model.train()


def writes(model: Any) -> None:
    with torch.no_grad():
        next(iter(model.parameters())).add_(1.0)


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_error_that_cannot_be_read_is_a_finding(put: Callable[..., dict[str, Finding]]) -> None:
    def meddle(model: Any) -> None:
        raise UnreadableError

    assert "raised UnreadableError: a UnreadableError that cannot be read" in put(Meddler(meddle))["reach"].reason


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, logp: Tensor) -> Tensor:
        return logp.clone()

    @staticmethod
    def backward(_context: Any, *_: Tensor) -> Tensor:
        raise NotImplementedError("no backward kernel")


@dataclass(frozen=True)
class Wrapped:
    """The honest log-probs behind one more node of the graph, in a loss of its own."""

    wrap: Callable[[Tensor], Tensor]
    name: str = "wrapped"

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        logps = HONEST.per_token_logps(model, groups)
        return [self.wrap(logp) for logp in logps] if torch.is_grad_enabled() else logps

    def loss(self, model: Any, groups: Groups, objective: Any) -> Any:
        rewards = torch.stack([logp.sum() for logp in self.per_token_logps(model, groups)])
        return SimpleNamespace(loss=rewards.mean(), rewards=rewards)


def test_a_backward_pass_that_raises_is_an_error_of_the_checks_that_run_it(
    put: Callable[..., dict[str, Finding]],
) -> None:
    findings = put(Wrapped(_NoBackward.apply))
    raised = {name for name, finding in findings.items() if "NotImplementedError: no backward kernel" in finding.reason}
    assert raised == {"reach", "normalisation", "optimizer-steps", "gradient-checkpointing", "dropout"}
    assert {findings[name].verdict for name in raised} == {Verdict.ERROR}


def test_a_graph_with_a_reentrant_checkpoint_can_be_asked_what_reaches_what(
    put: Callable[..., dict[str, Finding]],
) -> None:
    """It refuses ``torch.autograd.grad``, batched or not."""
    findings = put(Wrapped(lambda logp: checkpoint(torch.clone, logp, use_reentrant=True)))
    assert findings["reach"].verdict is Verdict.PASS, findings["reach"].reason
    assert findings["normalisation"].verdict is Verdict.PASS, findings["normalisation"].reason


@dataclass(frozen=True)
class Recomputed:
    """The honest step, whose whole forward pass is run again in the backward pass; log-probs may lean on the first."""

    use_reentrant: bool
    leaning: float = 0.0
    name: str = "recomputed"
    takes: tuple[CaseKind, ...] = CASE_KINDS

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        def step(_anchor: Tensor) -> tuple[Tensor, ...]:
            logps = HONEST.per_token_logps(model, groups)
            return tuple(logp + self.leaning * logps[0][0] if self.leaning else logp for logp in logps)

        anchor = torch.zeros(1, requires_grad=True)  # a reentrant checkpoint has no gradient without one
        return list(checkpoint(step, anchor, use_reentrant=self.use_reentrant))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize(("leaning", "verdict"), [(0.0, Verdict.PASS), (1e-6, Verdict.FAIL)])
def test_what_reaches_what_is_read_through_a_forward_pass_that_is_run_again(
    put: Callable[..., dict[str, Finding]], use_reentrant: bool, leaning: float, verdict: Verdict
) -> None:
    checks = [check for check in EXACT_CHECKS if check.name in ("reach", "no-cross-attention")]
    findings = put(Recomputed(use_reentrant, leaning), checks)
    assert [finding.verdict for finding in findings.values()] == [verdict] * 2, [f.reason for f in findings.values()]


def test_a_subject_that_raises_is_an_error_in_each_check_but_that_on_another_model(
    put: Callable[..., dict[str, Finding]],
) -> None:
    findings = put(Meddler(leaves))
    assert "raised SystemExit: 0" in findings["reach"].reason
    assert findings["reach"].verdict is Verdict.ERROR
    assert findings["absolute-positions"].verdict is Verdict.NOT_APPLICABLE
    assert "cannot run a decoder with absolute positions" in findings["absolute-positions"].reason


def test_settings_are_put_back(put: Callable[..., dict[str, Finding]], holder: ModelHolder) -> None:
    before = Baseline.read(holder.model)
    assert put(Meddler(trains))["branch-isolation"].verdict is Verdict.PASS
    assert Baseline.read(holder.model) == before
    assert not holder.model.training


def test_changed_weights_are_an_error_of_every_check_and_the_model_is_built_again(setting: Setting) -> None:
    holder = ModelHolder(ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)), "float32")
    model, before = holder.model, holder.baseline
    findings = run_checks(Meddler(writes), EXACT_CHECKS, setting, holder)
    assert {finding.verdict for finding in findings} == {Verdict.ERROR}
    assert all("changed the model" in finding.reason for finding in findings)
    assert holder.model is not model
    assert holder.baseline.hashes == before.hashes


def test_a_case_that_the_subject_refuses_is_not_applicable_with_its_reason(
    setting: Setting, holder: ModelHolder
) -> None:
    class Fussy:
        name = "fussy"
        takes = CASE_KINDS

        def supports(self, case: Any) -> Support:
            return Support(False, f"not {case.name}")

        def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
            raise AssertionError("it was asked all the same")

    findings = run_checks(Fussy(), EXACT_CHECKS, setting, holder)
    assert {finding.verdict for finding in findings} == {Verdict.NOT_APPLICABLE}
    assert [finding.reason for finding in findings] == [f"not {name}" for check in EXACT_CHECKS for name in check.cases]


def test_a_vocabulary_without_enough_tokens_leaves_only_the_checks_that_need_few(
    setting: Setting, holder: ModelHolder
) -> None:
    few = replace(setting, cases=check_cases(40, 0))
    findings = run_checks(HONEST, EXACT_CHECKS, few, holder)
    judged = {finding.check for finding in findings if finding.verdict is Verdict.PASS}
    assert judged == {"row-map", "normalisation", "own-objective"}
    reasons = {finding.reason for finding in findings if finding.verdict is Verdict.NOT_APPLICABLE}
    assert reasons == {"the vocabulary has too few tokens for a case in which all differ"}


def test_a_subject_without_gradients_is_not_put_to_reach(put: Callable[..., dict[str, Finding]]) -> None:
    class ForwardOnly(Meddler):
        def supports_gradients(self, model: Any) -> Support:
            return Support(False, "a kernel without a backward pass")

    finding = put(ForwardOnly(lambda model: None))["reach"]
    assert (finding.verdict, finding.reason) == (Verdict.NOT_APPLICABLE, "a kernel without a backward pass")


def test_a_subject_whose_tokens_bypass_the_embedding_is_not_put_to_reach(
    put: Callable[..., dict[str, Finding]],
) -> None:
    class Bypass:
        name = "bypass"

        def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
            weight = next(p for p in model.parameters() if p.requires_grad).sum()
            return [weight * torch.ones(len(ids)) for group in groups for ids in group.completions]

    subject: Subject = Bypass()
    assert "no token passed the model's embedding" in put(subject)["reach"].reason


@pytest.mark.parametrize("vocab_size", [53, 257, 151936])
def test_the_distinct_case_holds_no_token_twice_even_when_rewritten(vocab_size: int) -> None:
    cases = check_cases(vocab_size, 3)
    groups = cases.by_name["distinct-tokens"].groups
    ids = [t for group in groups for part in (group.prompt_ids, *group.completions) for t in part]
    others = [cases.other_token["distinct-tokens"][t] for t in ids]
    assert len(set(ids + others)) == 2 * len(ids)
    assert min(ids + others) >= 2
    assert max(ids + others) < vocab_size


def test_what_a_subject_does_to_the_decoder_with_absolute_positions_does_not_reach_the_next(setting: Setting) -> None:
    absolute = setting.yardsticks.absolute["distinct-tokens"]
    before = Baseline.read(absolute.model)
    holder = ModelHolder(ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)), "float32")
    (check,) = [check for check in EXACT_CHECKS if check.name == "absolute-positions"]
    run_checks(Meddler(writes), [check], setting, holder)
    assert Baseline.read(absolute.model) == before

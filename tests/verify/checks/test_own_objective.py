"""Rewards and loss are held against the log-probs that came with them, in every dtype as sharply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from verify.checks.cases import check_cases
from verify.checks.check import Finding
from verify.checks.own_objective import OWN_OBJECTIVE, reward_budgets
from verify.checks.run import run_exact_checks
from verify.faults.catalogue import mutation_named
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.subjects.selection import select_subject
from verify.tolerance import Policy
from verify.verdict import Verdict

OBJECTIVE = Preference(beta=0.1, label_smoothing=0.1)
ONE_LAYER = ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3))
CAUGHT = (
    "end-token-not-counted",
    "last-prompt-token-counted",
    "mean-instead-of-sum",
    "sum-in-bfloat16",
    "label-smoothing-ignored",
    "rewards-scaled-twice",
    "preference-reversed",
    "rejected-of-next-group",
    "boundaries-subtracted-twice",
    "loss-divided-by-ranks",
    "groups-weighted-by-tokens",
)


@dataclass(frozen=True)
class _Step:
    """A step of which a test chooses what it returns."""

    logp: float = -2.0
    loss_off_by: float = 0.0
    dtype: torch.dtype = torch.float32
    returns_logps: bool = True
    name: str = "step"

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        return [torch.full((len(ids),), self.logp, dtype=self.dtype) for g in groups for ids in g.completions]

    def loss(self, model: Any, groups: Sequence[PreferenceGroup], objective: Preference) -> Any:
        logps = self.per_token_logps(model, groups)
        refs = [torch.full_like(logp, -1.0) for logp in logps]
        rewards = torch.stack([objective.beta * (logp - ref).sum() for logp, ref in zip(logps, refs, strict=True)])
        margins = (rewards[0::2] - rewards[1::2]).double()
        smoothed = (1 - objective.label_smoothing) * margins.sigmoid().log()
        losses = -smoothed - objective.label_smoothing * (-margins).sigmoid().log()
        output = {"loss": losses.mean() + self.loss_off_by, "rewards": rewards}
        if self.returns_logps:
            output |= {"per_token_logps": logps, "ref_per_token_logps": refs}
        return type("Output", (), output)()


def put_to(subjects: Sequence[Subject], dtype: str, policy: Policy, case: str = "uneven-groups") -> list[Finding]:
    holder = ModelHolder(ONE_LAYER, dtype)
    found = run_exact_checks(
        subjects, [OWN_OBJECTIVE], holder, dtype=dtype, objective=OBJECTIVE, policy=policy, seed=0,
        begin=lambda subject: None,
    )  # fmt: skip
    return [finding for finding in found if finding.case == case]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_faults_behind_the_log_probs_are_caught_by_far_and_the_honest_step_is_not(dtype: str, policy: Policy) -> None:
    honest = [FaultySubject(), FaultySubject(mutation=mutation_named("summed-backwards"))]
    planted = [FaultySubject(mutation=mutation_named(name)) for name in CAUGHT]
    num_rewards = check_cases(257, 0).by_name["uneven-groups"].num_completions
    findings = put_to([*honest, *planted], dtype, policy)
    for finding in findings[:2]:
        assert finding.verdict is Verdict.PASS
        assert (finding.num_compared, finding.num_differing) == (num_rewards + 1, 0)  # and the loss
        assert finding.ratio < 0.2
    for name, finding in zip(CAUGHT, findings[2:], strict=True):
        assert finding.verdict is Verdict.FAIL, name
        assert finding.ratio > 10, name
        assert "its own log-probs make it" in finding.reason, name


@pytest.mark.parametrize("name", ["cut-at-first-end-token", "token-zero-not-counted"])
def test_a_mask_rebuilt_from_ids_is_caught_where_the_ids_occur(name: str, policy: Policy) -> None:
    subjects = [FaultySubject(), FaultySubject(mutation=mutation_named(name))]
    honest, wrong = put_to(subjects, "bfloat16", policy, case="special-ids")
    assert (honest.verdict, wrong.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert wrong.ratio > 100


def test_what_brings_no_loss_or_no_log_probs_with_it_is_not_judged(policy: Policy) -> None:
    without_loss, without_logps = put_to(
        [select_subject("pairwise-eager"), _Step(returns_logps=False)], "float32", policy
    )
    assert without_loss.verdict is Verdict.NOT_APPLICABLE
    assert "no loss of its own" in without_loss.reason
    assert without_logps.verdict is Verdict.NOT_APPLICABLE
    assert "no log-probs with its loss" in without_logps.reason


def test_log_probs_in_bfloat16_are_allowed_sums_in_bfloat16_and_no_more(policy: Policy) -> None:
    """-2.0078125 is a bfloat16 number whose sum over three tokens is none."""
    honest, off = put_to(
        [
            _Step(logp=-2.0078125, dtype=torch.bfloat16, name="honest"),
            _Step(logp=-2.0078125, dtype=torch.bfloat16, loss_off_by=0.3, name="off"),
        ],
        "bfloat16",
        policy,
    )
    assert honest.verdict is Verdict.PASS
    assert off.verdict is Verdict.FAIL
    assert off.reason.startswith("the loss is ")


@pytest.mark.parametrize("value", [float("nan"), 1e-3])
def test_a_loss_that_is_not_that_of_the_log_probs_is_found(value: float, policy: Policy) -> None:
    (finding,) = put_to([_Step(loss_off_by=value)], "float32", policy)
    assert (finding.verdict, finding.num_differing) == (Verdict.FAIL, 1)
    assert finding.ratio > 100


def test_where_all_log_probs_are_zero_nothing_may_differ(policy: Policy) -> None:
    @dataclass(frozen=True)
    class Zero(_Step):
        def loss(self, model: Any, groups: Sequence[PreferenceGroup], objective: Preference) -> Any:
            output = super().loss(model, groups, objective)
            output.ref_per_token_logps = output.per_token_logps
            output.rewards = torch.zeros_like(output.rewards)
            output.rewards[1] = 1e-9
            return output

    (finding,) = put_to([Zero(logp=0.0)], "float32", policy)
    assert finding.verdict is Verdict.FAIL
    assert finding.ratio == float("inf")


def test_a_budget_by_hand() -> None:
    """beta (T + 4) eps sum(|logp| + |ref|): 0.5 * (2 + 4) * 0.25 * (1 + 2 + 3 + 4)."""
    logps, refs = [torch.tensor([-1.0, -2.0])], [torch.tensor([-3.0, -4.0])]
    assert reward_budgets(logps, refs, Preference(beta=0.5), 0.25) == [7.5]

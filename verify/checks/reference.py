"""The reference pass, as the runner or the subject's own loss makes it: does it follow the tokens?

A reference does not change during training, so it is tempting to keep it; what is kept must belong to these tokens.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from verify.cases import Case
from verify.checks.bench import Bench, Groups, flat
from verify.checks.cases import rewrite
from verify.checks.check import Measured
from verify.checks.own_objective import reward_budgets
from verify.checks.rewriting import Rewriting, hold_against_rewritings
from verify.checks.yardsticks import measured
from verify.frozen_policy import CachedLogps
from verify.objective import preference_beside
from verify.passes import reference_logps
from verify.returned_values import check_logps
from verify.subject import owns_loss
from verify.subjects.pairwise import WITNESS
from verify.supervised_values import supervised_logps
from verify.trained_gradients import to_float64


def computes_reference(bench: Bench) -> bool:
    """Whether reference log-probs are the subject's doing; cached ones the runner looks up, unless a loss does."""
    cached = isinstance(preference_beside(bench.setting.objective).reference, CachedLogps)
    return owns_loss(bench.subject) or not cached


def hold_reference_against_rewriting(bench: Bench, case: Case, rewriting: Rewriting) -> Measured:
    """As :func:`hold_against_rewritings`, for the reference log-probs; only where :func:`computes_reference`.

    A subject without a loss of its own is run with its adapters off. One that has a loss is asked through it; if that
    returns rewards alone, sum_t ref_logp_t = sum_t logp_t - reward / beta is held against the unpacked reference.

    Args:
        bench: The subject and its model.
        case: A case of distinct tokens.
        rewriting: What to rewrite.

    Returns:
        The violations.
    """
    found = _hold(bench, case, rewriting)
    return replace(found, worst=f"reference log-probs: {found.worst}" if found.worst else "")


def _hold(bench: Bench, case: Case, rewriting: Rewriting) -> Measured:
    objective = preference_beside(bench.setting.objective)

    def of_frozen_policy(groups: Groups) -> Tensor:
        assert not isinstance(objective.reference, CachedLogps)
        with objective.reference.standing_in(bench.model) as stand_in:
            return flat(bench.run_logps(groups, stand_in))

    if not owns_loss(bench.subject):
        return hold_against_rewritings(bench, case, [rewriting], of_frozen_policy)
    before = bench.own_loss(case.groups, objective)
    rewritten = rewrite(case.groups, bench.setting.cases.other_token[case.name], rewriting.token_ids)
    after = bench.own_loss(rewritten, objective)
    if before.refs is None or after.refs is None:
        return _hold_rewards(bench, case, rewritten, rewriting, after.rewards)
    refs = {case.groups: flat(before.refs), rewritten: flat(after.refs)}
    return hold_against_rewritings(bench, case, [rewriting], refs.__getitem__)


def unpacked_reference(bench: Bench, groups: Groups) -> tuple[Tensor, ...]:
    """The frozen policy's log-probs by the unpacked path, float64."""
    logps = reference_logps(WITNESS, bench.model, groups, preference_beside(bench.setting.objective).reference)
    checked = check_logps(logps, groups, subject=WITNESS.name, differentiable=False)
    return supervised_logps(tuple(map(to_float64, checked)), groups)


def _hold_rewards(bench: Bench, case: Case, groups: Groups, rewriting: Rewriting, rewards: Tensor) -> Measured:
    """Reference sums that follow from rewards, against those of the unpacked path on the same, rewritten groups."""
    objective, token_budget = (
        preference_beside(bench.setting.objective),
        measured(bench.setting.yardsticks.token_budgets.get(case.name)),
    )
    logps = bench.logps(groups)
    refs = unpacked_reference(bench, groups)
    epsilon = max(float(torch.finfo(dtype).eps) for dtype in (torch.float32, bench.model.dtype))
    of_rounding = reward_budgets(logps, refs, objective, epsilon)
    ratios, worst = list[float](), ""
    for k, (reward, logp, ref) in enumerate(zip(rewards.tolist(), logps, refs, strict=True)):
        tokens = 1 if objective.sums_tokens else len(logp)
        actual, expected = float(logp.sum()) / tokens - reward / objective.beta, float(ref.sum()) / tokens
        # Each token of the policy, in this pass and in that of the loss, and of the reference.
        budget = 3 * len(logp) / tokens * token_budget + of_rounding[k] / objective.beta
        difference = abs(actual - expected)
        ratios.append(math.inf if math.isnan(difference) else difference / budget)
        if ratios[-1] > 1 and not worst:
            worst = (
                f"rewriting {rewriting.words}: group {k // 2}, {'rejected' if k % 2 else 'chosen'}: by its reward "
                f"their sum is {actual:.6g}, unpacked it is {expected:.6g}"
            )
    num_differing = sum(ratio > 1 for ratio in ratios)
    return Measured(num_compared=len(ratios), num_differing=num_differing, worst=worst, ratio=max(ratios))

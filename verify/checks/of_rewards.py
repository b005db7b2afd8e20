"""Exact checks as they are put to rewards: a reward model has no log-probs that could keep or change their bits.

A reward depends on every token of its prompt and its completion, the last one included, and on no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.cases import rewrite
from verify.checks.check import Measured, NotApplicableError
from verify.checks.places import completion_words
from verify.checks.rewriting import Rewriting
from verify.objective import REWARD_MODEL, RewardModel
from verify.reward_budget import loss_rounding
from verify.subject import computes_loss
from verify.subjects.oracle import apply_objective
from verify.supervised_values import pair_margins

_ATTEMPTS = 3


def hold_rewards_against_rewritings(bench: Bench, case: Case, rewritings: Sequence[Rewriting]) -> Measured:
    """Run a case as it is and with each rewriting: rewards change where their own tokens did, and keep their bits else.

    One number may keep its few bits by chance, in bfloat16 one in some hundred: what kept them is asked twice more with
    other tokens in place of the same ones.

    Args:
        bench: The subject and the reward model.
        case: A case of distinct tokens.
        rewritings: What to rewrite, each in a pass of its own.

    Returns:
        The violations of the first rewriting that shows any, or none.
    """
    groups, compared, violations = case.groups, 0, list[str]()
    others = [_turned(bench.setting.cases.other_token[case.name], by) for by in range(_ATTEMPTS)]
    paths = [
        (completion_words(groups, g, k), {*group.prompt_ids, *ids})
        for g, group in enumerate(groups)
        for k, ids in enumerate(group.completions)
    ]
    for rewriting in rewritings:
        if violations:
            break
        must = [not path.isdisjoint(rewriting.token_ids) for _, path in paths]
        changed = _changed(bench, case, rewriting, others[0])
        for other in others[1:]:
            if not any(wanted and not found for wanted, found in zip(must, changed, strict=True)):
                break
            again = _changed(bench, case, rewriting, other)
            changed = [a or b for a, b in zip(changed, again, strict=True)]
        for (words, _), has_changed, must_change in zip(paths, changed, must, strict=True):
            compared += 1
            if has_changed != must_change:
                how = (
                    "kept its bits, though it depends on them"
                    if must_change
                    else "changed, though they are not its own"
                )
                violations.append(f"rewriting {rewriting.words}: the reward of {words} {how}")
    return Measured(
        num_compared=compared,
        num_differing=len(violations),
        worst=violations[0] if violations else "",
        ratio=math.inf if violations else 0.0,
    )


def _changed(bench: Bench, case: Case, rewriting: Rewriting, other: Mapping[int, int]) -> list[bool]:
    after = bench.rewards(rewrite(case.groups, other, rewriting.token_ids))
    found: list[bool] = (bench.rewards(case.groups) != after).tolist()  # NaN never equals
    return found


def _turned(other: Mapping[int, int], by: int) -> dict[int, int]:
    """Each token becomes what a later one became: no two the same, and none of the case."""
    became = list(other.values())
    return dict(zip(other, [*became[by:], *became[:by]], strict=True))


def same_rewards_again(bench: Bench, case: Case) -> Measured:
    """Hold the rewards of a second call to those of the first, bit by bit.

    Raises:
        NotApplicableError: Not on a CPU: elsewhere rounding may differ from call to call.
    """
    if next(bench.model.parameters()).device.type != "cpu":
        raise NotApplicableError("rewards are held to their bits on a CPU only")
    before, again = bench.rewards(case.groups), bench.run_rewards(case.groups, seeded=False)
    differing = (before != again).nonzero().reshape(-1).tolist()
    worst = "" if not differing else f"a reward is {before[differing[0]]:.9g}, then {again[differing[0]]:.9g}"
    return Measured(
        num_compared=len(before),
        num_differing=len(differing),
        worst=worst,
        ratio=math.inf if differing else 0.0,
    )


def loss_of_its_rewards(bench: Bench, case: Case) -> Measured:
    """Hold the loss of a subject to the Bradley-Terry loss of the rewards that it returned with it, but for rounding.

    Raises:
        NotApplicableError: The subject has no such loss.
    """
    if not computes_loss(bench.subject, REWARD_MODEL):
        raise NotApplicableError("computes no loss of its own: the runner applies the objective to its rewards")
    output, objective = bench.own_loss(case.groups, RewardModel()), RewardModel()
    expected = float(apply_objective(list(output.rewards), (), case.groups, objective).loss)
    budget = loss_rounding(pair_margins(output.rewards, case.groups), expected, output.epsilon)
    difference = abs(output.loss - expected)
    differs = not difference <= budget  # NaN never equals
    return Measured(
        num_compared=1,
        num_differing=int(differs),
        worst=f"the loss is {output.loss:.9g}, but its own rewards make it {expected:.9g}" if differs else "",
        ratio=difference / budget if budget and math.isfinite(difference) else math.inf if differs else 0.0,
    )

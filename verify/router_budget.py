"""Budgets of the routers of a mixture of experts: the shares of tokens that experts take, and the loss of both means.

The mean probabilities are budgeted as log-probs are. A share is a count: rounding moves it where a token is as near to
one expert as to the next, and then by a whole choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from verify.budget import Budget
from verify.groups import PreferenceGroup
from verify.noise import BudgetKind, NoiseFloor
from verify.preference_budget import EPSILON
from verify.router_balance import RouterBalance
from verify.router_ties import RouterTies
from verify.tolerance import Policy

_ROUNDINGS = 4
"""Of a share that is counted in float32: far less than one choice, as long as there are fewer than a million."""


def share_budget(
    kind: BudgetKind, case: str, *, noise: NoiseFloor, policy: Policy, ties: RouterTies | None = None
) -> Budget:
    """How far the share of an expert may be off: by choices that flip between forms of the unpacked path or may flip.

    Args:
        kind: Distance to the oracle or to the witness.
        case: Name of the case, whose own flips count and no others.
        noise: The noise floor.
        policy: For the factor.
        ties: Choices of the case that rounding may turn.

    Returns:
        The budget.
    """
    factor = (policy.oracle if kind == "oracle" else policy.differential).factor
    own = noise.by_case[case, kind, "router_shares", ""]
    flips, floor = (own.max if own.max > _ROUNDINGS * EPSILON else 0.0), _ROUNDINGS * EPSILON
    undecided = 0.0 if ties is None else ties.share_of_undecided
    return Budget(value=factor * flips + undecided + floor, factor=factor, floor=floor, noise=flips, source=own.source)


def router_loss_budget(
    balance: RouterBalance, groups: Sequence[PreferenceGroup], *, probs_rms: float, shares_max: float
) -> float:
    """How far the budgets of shares and mean probabilities move ``E sum_e f_e P_e``, and its rounding in float32.

    ``E (||f|| sqrt(E) b_P + b_f)``: Cauchy-Schwarz for errors of the P_e, whose RMS is at most b_P; the P_e add up to
    1, so that errors of the f_e move it by no more than E times the largest.

    Args:
        balance: The oracle's or the witness's.
        groups: The groups, for the number of terms of a sum.
        probs_rms: RMS budget of the mean probabilities.
        shares_max: Budget of a share.

    Returns:
        The budget of the loss without its coefficient.
    """
    num_experts = len(balance.probs)
    moved = float(balance.shares.norm()) * math.sqrt(num_experts) * probs_rms + shares_max
    levels = math.ceil(math.log2(sum(len(group.prompt_ids) + max(map(len, group.completions)) for group in groups)))
    return num_experts * moved + (levels + 1) * EPSILON * balance.loss

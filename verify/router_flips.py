"""Judgements on a case in which rounding may turn expert choices: no FAIL for a flip, and none hidden behind one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from verify.comparison import Quantity
from verify.judgement import Judgement
from verify.router_ties import RouterTies
from verify.verdict import Verdict

_LOGPS: tuple[Quantity, ...] = ("per_token_logps", "ref_per_token_logps")


def excuse_flips(
    judgements: Sequence[Judgement], ties: RouterTies | None, untouched_max: Mapping[Quantity, float]
) -> tuple[Judgement, ...]:
    """Judgements in which what a flip explains is INCONCLUSIVE instead of FAIL.

    A flip has to have shown: in log-probs beyond their budgets, all of which an undecided choice touches, or in shares
    of experts that moved, within their budget, which allows for the undecided choices and no more. Everything that
    follows is then excused. Shares beyond their budget are a fault, and so is a value that is not finite.

    Args:
        judgements: Of one subject, to one expectation.
        ties: Those of the case; None where nothing is known of routers.
        untouched_max: Of log-probs that no undecided choice touches, as in ``router_ties``.

    Returns:
        As many judgements.
    """
    failing = [judgement for judgement in judgements if judgement.verdict is Verdict.FAIL]
    if ties is None or not ties.num_undecided or not failing:
        return tuple(judgements)
    largest = {judgement.quantity: judgement for judgement in judgements if judgement.statistic == "max"}
    beyond = {judgement.quantity for judgement in failing}.intersection(_LOGPS)
    within_budget = all(_at_most(untouched_max.get(quantity, 0.0), largest[quantity]) for quantity in beyond)
    shares = largest.get("router_shares")
    moved = 0.0 if shares is None or shares.budget is None else (shares.measured or 0.0) - shares.budget.floor
    if not within_budget or (shares in failing) or not (beyond or moved > 0):
        return tuple(judgements)
    quantities = ", ".join(dict.fromkeys(judgement.quantity for judgement in failing))
    why = (
        f"{ties.num_undecided} of {ties.num_choices} expert choices are as near to a tie as rounding moves them, and "
        f"values jump where one flips; beyond their budgets, and explained by that: {quantities}"
    )
    return tuple(
        replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=why)
        if judgement in failing and judgement.measured is not None and math.isfinite(judgement.measured)
        else judgement
        for judgement in judgements
    )


def _at_most(measured: float, judgement: Judgement) -> bool:
    return judgement.budget is not None and measured <= judgement.budget.value

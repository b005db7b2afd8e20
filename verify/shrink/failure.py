"""What kind of failure a result is, so that shrinking does not slide from one fault into another or into rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verify.comparison import Place, Quantity
from verify.gate import Result
from verify.judgement import Judgement
from verify.verdict import Verdict

CLEARLY = 2.0
"""A difference of this many budgets is no rounding."""

# In the order in which they are computed: what is off early takes everything after it along.
_FAMILIES: tuple[tuple[str, tuple[Quantity, ...]], ...] = (
    ("log-probs", ("per_token_logps",)),
    ("reference log-probs", ("ref_per_token_logps",)),
    ("routers", ("router_probs", "router_shares")),
    ("rewards, margins or loss", ("rewards", "margins", "loss")),
    ("gradients", ("gradients",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first thing that is wrong with a result.

    Args:
        kind: What stays the same while a case is shrunk: the first family of quantities over budget, a value that is
            not finite, or a difference of structure.
        reason: The gate's own words.
        ratio: Measured / budget; infinite where there is no number.
        quantity: The quantity, or "" for a difference of structure.
        measured: The difference.
        budget: Its bound.
        place: The worst place, by meaning.
        actual: What the subject computed there.
        expected: What it should have computed there.
    """

    kind: str
    reason: str
    ratio: float = math.inf
    quantity: str = ""
    measured: float = math.nan
    budget: float = math.nan
    place: str = ""
    actual: float = math.nan
    expected: float = math.nan


def failure_of(result: Result, *, at_least: float = CLEARLY) -> Failure | None:
    """The kind of failure of a result.

    Args:
        result: One subject on one case.
        at_least: Budgets that a difference must have to count.

    Returns:
        The failure, or None if the verdict is not FAIL or no difference is large enough.
    """
    if result.verdict is not Verdict.FAIL:
        return None
    if not result.judgements:
        reason = "; ".join(result.reasons)
        return Failure(kind=f"structure: {reason.partition(':')[0]}", reason=reason)
    for family, quantities in _FAMILIES:
        over = [j for j in result.judgements if j.quantity in quantities and _is_over(j, at_least)]
        if over:
            return _failure(family, max(over, key=lambda judgement: judgement.ratio))
    return None


def _is_over(judgement: Judgement, at_least: float) -> bool:
    return judgement.verdict is Verdict.FAIL and judgement.ratio >= at_least


def _failure(family: str, worst: Judgement) -> Failure:
    measured = math.nan if worst.measured is None else worst.measured
    place = worst.worst[0] if worst.worst else Place("", math.nan, math.nan)
    return Failure(
        kind=family if math.isfinite(measured) else f"{family}: not finite",
        reason=worst.reason,
        ratio=worst.ratio,
        quantity=worst.quantity,
        measured=measured,
        budget=worst.budget.value if worst.budget is not None else math.nan,
        place=place.where,
        actual=place.actual,
        expected=place.expected,
    )

"""Sharded parity: a sharded step held against the single process of the same subject, the oracle and the unpacked path.

The budgets are the gate's. Sharding cuts a batch into several calls and sums gradients in another order: to the single
process that is one more rearrangement, so the differential budget holds for it as it does for the unpacked path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from verify.comparison import StructureError, compare_observations
from verify.judgement import Judge, Judgement, JudgingContext
from verify.observation import Observation
from verify.sharded.yardsticks import Yardstick, Yardsticks
from verify.tolerance import Policy
from verify.verdict import Verdict, fold

Against = Literal["single process", "oracle", "unpacked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityResult:
    """One subject in one scenario and one precision.

    Args:
        scenario: Name of the scenario.
        subject: Name of the subject.
        precision: Name of the precision.
        verdict: What was concluded.
        reasons: Why it is no PASS.
        judgements: By what the step was held against.
        micro_size: Most groups of a micro-batch; smaller than that of the scenario for a subject that makes a call for
            each group.
        groups_of_ranks: Number of groups of each rank.
        dummies_of_ranks: Number of calls of each rank that added nothing.
    """

    scenario: str
    subject: str
    precision: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    judgements: tuple[tuple[Against, Judgement], ...] = ()
    micro_size: int = 0
    groups_of_ranks: tuple[int, ...] = ()
    dummies_of_ranks: tuple[int, ...] = ()

    @property
    def num_compared(self) -> int:
        """Values compared over all judgements."""
        return sum(judgement.num_compared for _, judgement in self.judgements)


def judge_parity(
    actual: Observation, subject: str, yardstick: Yardstick, yardsticks: Yardsticks, *, dtype: str, policy: Policy
) -> tuple[Verdict, tuple[str, ...], tuple[tuple[Against, Judgement], ...]]:
    """Hold what a sharded step computed against what one process computes.

    Args:
        actual: The observation of the sharded step.
        subject: Name of its subject.
        yardstick: Of the case.
        yardsticks: Of the dtype.
        dtype: Name of the dtype, as the gate knows it.
        policy: Factors and floors.

    Returns:
        The verdict, its reasons, and every judgement: first against the single process, then the oracle, then the
        unpacked path.
    """
    context = JudgingContext(
        case=yardstick.case.name,
        groups=yardstick.case.groups,
        dtype_name=dtype,
        objective=yardstick.objective,
        policy=policy,
        noise=yardsticks.noise,
    )
    held: Sequence[tuple[Against, Observation]] = (
        ("single process", yardstick.singles[subject]),
        ("oracle", yardstick.expected),
        ("unpacked", yardstick.witness),
    )
    judgements: list[tuple[Against, Judgement]] = []
    try:
        for against, expected in held:
            comparisons = compare_observations(actual, expected, yardstick.case.groups, sizes=yardstick.sizes)
            judge = Judge("oracle" if against == "oracle" else "differential", expected, context)
            judgements += [
                (against, _named(judgement, against)) for judgement in judge(comparisons, gradients_absent_because="")
            ]
    except StructureError as error:
        return Verdict.FAIL, (str(error),), ()
    verdict = fold(judgement.verdict for _, judgement in judgements)
    reasons = tuple(dict.fromkeys(judgement.reason for _, judgement in judgements if judgement.reason))
    if yardstick.implausible and all(math.isfinite(judgement.measured or 0.0) for _, judgement in judgements):
        # The budgets themselves are in doubt: neither PASS nor FAIL can rest on them.
        return Verdict.INCONCLUSIVE, (*yardstick.vacuous, *yardstick.implausible, *reasons), tuple(judgements)
    if yardstick.vacuous and verdict in (Verdict.PASS, Verdict.INCONCLUSIVE):
        return Verdict.INCONCLUSIVE, (*yardstick.vacuous, *reasons), tuple(judgements)
    return verdict, reasons, tuple(judgements)


def _named(judgement: Judgement, against: Against) -> Judgement:
    """The judgement as its reason ought to read: what the differential budget is about is not the unpacked path."""
    if against != "single process":
        return judgement
    return replace(
        judgement, reason=judgement.reason.replace("distance to the unpacked path", "distance to one process")
    )

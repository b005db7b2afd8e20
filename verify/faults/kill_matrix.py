"""What caught each planted fault, and what flagged an equivalent mutant: from results of the gate to outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from verify.checks.check import EXACT_CHECK_NAMES, ExactCheckName, Finding
from verify.comparison import Quantity
from verify.faults.fault import EquivalentMutant, Fault, Mutation
from verify.gate import Result
from verify.judgement import Judgement
from verify.noise import BudgetKind
from verify.packed_proof import Summary
from verify.precision import rounds_in
from verify.verdict import Verdict, fold

Check = Quantity | Literal["structure", "packed-ran"] | ExactCheckName
"""A quantity of the parity check, the shape of what was compared, the proof that the packed path ran, exact checks."""

FAMILIES: dict[Check, str] = {
    "per_token_logps": "log-probs",
    "ref_per_token_logps": "ref log-probs",
    "router_probs": "routers",
    "router_shares": "routers",
    "rewards": "rewards, margins, loss",
    "margins": "rewards, margins, loss",
    "loss": "rewards, margins, loss",
    "gradients": "gradients",
    "structure": "structure",
    "packed-ran": "packed path ran",
    **{name: name for name in EXACT_CHECK_NAMES},
}
"""Checks that follow from one another count as one."""

WITH_BUDGET: frozenset[ExactCheckName] = frozenset(
    {
        "absolute-positions",
        "permutation",
        "normalisation",
        "own-objective",
        "optimizer-steps",
        "gradient-checkpointing",
        "dropout",
    }
)
"""Exact checks that allow for rounding."""

EVERY_CASE_COUNTS = ("float64", "float32")
"""Where a fault has to be caught on every case it was run on. In bfloat16 a small case may drown in rounding."""


class Outcome(Enum):
    """What became of a planted mutation."""

    KILLED = "killed"
    SURVIVED = "survived"
    HIDDEN = "hidden"
    """A fault that was not caught, in a dtype in which its own description says that rounding hides it."""
    QUIET = "quiet"
    FLAGGED = "flagged"
    ERROR = "error"
    INCONCLUSIVE = "inconclusive"

    @property
    def verdict(self) -> Verdict:
        """PASS where the checks did what they must: kill a fault, leave an equivalent mutant alone.

        NOT_APPLICABLE where nothing was expected of them.
        """
        return {
            Outcome.KILLED: Verdict.PASS,
            Outcome.QUIET: Verdict.PASS,
            Outcome.SURVIVED: Verdict.FAIL,
            Outcome.HIDDEN: Verdict.NOT_APPLICABLE,
            Outcome.FLAGGED: Verdict.FAIL,
            Outcome.ERROR: Verdict.ERROR,
            Outcome.INCONCLUSIVE: Verdict.INCONCLUSIVE,
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    """One check against one mutation, over the cases that it was run on.

    Args:
        check: The check.
        kind: Distance to the oracle or to the witness; None for checks without a budget.
        killed: Whether it caught the mutation on some case.
        margin: Largest measured / budget; infinite where there is no number.
        case: The case that showed it.
        where: The place of the largest difference.
    """

    check: Check
    kind: BudgetKind | None
    killed: bool
    margin: float
    case: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What became of one mutation in one dtype.

    Args:
        mutation: The fault or equivalent mutant.
        dtype: Name of the dtype.
        cases: Names of the cases that it was run on.
        outcome: The outcome.
        reasons: Why it is not KILLED or QUIET.
        margin: Largest measured / budget over all checks and cases.
        weakest_margin: The same on the case that showed it least.
        weakest_case: That case.
        catches: One for every check, in a fixed order.
    """

    mutation: Mutation
    dtype: str
    cases: tuple[str, ...]
    outcome: Outcome
    reasons: tuple[str, ...]
    margin: float
    weakest_margin: float
    weakest_case: str
    catches: tuple[Catch, ...]

    @property
    def caught_by(self) -> tuple[str, ...]:
        """Families of checks that caught it."""
        return tuple(dict.fromkeys(FAMILIES[catch.check] for catch in self.catches if catch.killed))

    @property
    def sole_check(self) -> str:
        """The family that alone caught it, or ""."""
        return self.caught_by[0] if len(self.caught_by) == 1 else ""


def kill_of(mutation: Mutation, summary: Summary, findings: Sequence[Finding] = ()) -> Kill:
    """What became of one mutation.

    A fault has to be caught on every case it was run on, by every check that must catch it, since each case has what
    the fault needs to bite: one that passes means that the fault's own description is wrong, or the check blind. In
    bfloat16 rounding may hide a fault from a check or on a case: there one check has to catch it on one case, and so
    fail the run.

    Args:
        mutation: The mutation.
        summary: Its subject's results in one dtype.
        findings: What the exact checks found on that subject in that dtype.

    Returns:
        Its outcome and what each check made of it.

    Raises:
        ValueError: It was run on no case.
    """
    results = [result for result in summary.results if result.verdict is not Verdict.NOT_APPLICABLE]
    if not results:
        raise ValueError(f"{mutation.name} was run on no case in {summary.dtype}")
    of_case = {result.case: _largest_ratio(result) for result in results}
    weakest = min(of_case, key=lambda case: of_case[case])
    outcome, reasons = _outcome(mutation, results, summary, findings)
    return Kill(
        mutation=mutation,
        dtype=summary.dtype,
        cases=tuple(of_case),
        outcome=outcome,
        reasons=tuple(reasons),
        margin=max(of_case.values()),
        weakest_margin=of_case[weakest],
        weakest_case=weakest,
        catches=(*_parity(results), _structure(results), _packed_ran(summary), *_exact(findings)),
    )


def _outcome(
    mutation: Mutation, results: Sequence[Result], summary: Summary, findings: Sequence[Finding]
) -> tuple[Outcome, list[str]]:
    for verdict, outcome in ((Verdict.ERROR, Outcome.ERROR), (Verdict.INCONCLUSIVE, Outcome.INCONCLUSIVE)):
        if unproven := [result for result in results if result.verdict is verdict]:
            return outcome, _by_reason(unproven)
    if broken := [f"{f.check} on case {f.case}: {f.reason}" for f in findings if f.verdict is Verdict.ERROR]:
        return Outcome.ERROR, broken
    caught_exactly = {finding.check: finding for finding in findings if finding.verdict is Verdict.FAIL}
    if not isinstance(mutation, Fault):
        outside = mutation.outside_proof if isinstance(mutation, EquivalentMutant) else ()
        flagged = [*_by_reason([result for result in results if result.verdict is Verdict.FAIL]), *summary.reasons]
        flagged += [
            f"{f.check} on case {f.case}: {f.reason}" for f in caught_exactly.values() if f.check not in outside
        ]
        return (Outcome.FLAGGED, flagged) if flagged else (Outcome.QUIET, [])
    missed = []
    if "parity" in mutation.must_kill:
        missed += [f"parity passes on case {result.case}" for result in results if result.verdict is Verdict.PASS]
    if "packed-ran" in mutation.must_kill and not summary.reasons:
        missed.append("the proof that the packed path ran sees nothing")
    missed += [
        f"{name} sees nothing"
        for name in EXACT_CHECK_NAMES
        if findings and name in mutation.must_kill and name not in caught_exactly
    ]
    caught_once = bool(summary.reasons or caught_exactly) or any(result.verdict is Verdict.FAIL for result in results)
    dtype = rounds_in(summary.dtype)
    if not missed or (caught_once and dtype not in EVERY_CASE_COUNTS):
        return Outcome.KILLED, []
    return (Outcome.SURVIVED if dtype in mutation.dtypes else Outcome.HIDDEN), missed


def _by_reason(results: Sequence[Result]) -> list[str]:
    """The reasons of results, each once, with the cases that have it."""
    cases: dict[str, list[str]] = {}
    for result in results:
        cases.setdefault("; ".join(result.reasons), []).append(result.case)
    return [f"case {', '.join(names)}: {reason}" for reason, names in cases.items()]


def _largest_ratio(result: Result) -> float:
    if result.verdict is Verdict.FAIL and not result.judgements:
        return math.inf  # not the same tensors, or not of the same shapes
    return max((j.ratio for j in result.judgements if j.budget is not None), default=0.0)


def _parity(results: Sequence[Result]) -> Iterable[Catch]:
    judged: dict[tuple[Quantity, BudgetKind], list[tuple[Result, Judgement]]] = {}
    for result in results:
        for judgement in result.judgements:
            if judgement.budget is not None:
                judged.setdefault((judgement.quantity, judgement.kind), []).append((result, judgement))
    for (quantity, kind), entries in sorted(
        judged.items(), key=lambda item: (list(FAMILIES).index(item[0][0]), item[0][1])
    ):
        result, largest = max(entries, key=lambda entry: entry[1].ratio)
        yield Catch(
            check=quantity,
            kind=kind,
            killed=any(judgement.verdict is Verdict.FAIL for _, judgement in entries),
            margin=largest.ratio,
            case=result.case,
            where=largest.worst[0].where if largest.worst else "",
        )


def _structure(results: Sequence[Result]) -> Catch:
    broken = [result for result in results if result.verdict is Verdict.FAIL and not result.judgements]
    return Catch(
        check="structure",
        kind=None,
        killed=bool(broken),
        margin=math.inf if broken else 0.0,
        case=broken[0].case if broken else "",
        where="; ".join(broken[0].reasons) if broken else "",
    )


def _packed_ran(summary: Summary) -> Catch:
    return Catch(
        check="packed-ran",
        kind=None,
        killed=bool(summary.reasons),
        margin=summary.slots / summary.pairwise_slots if summary.pairwise_slots else 0.0,
        case="",
        where="; ".join(summary.reasons),
    )


def _exact(findings: Sequence[Finding]) -> Iterable[Catch]:
    """One catch for each exact check that was put to the mutation: of its cases that which showed it most."""
    judged = [finding for finding in findings if finding.verdict in (Verdict.PASS, Verdict.FAIL)]
    for name in dict.fromkeys(finding.check for finding in judged):
        of_check = [finding for finding in judged if finding.check == name]
        largest = max(of_check, key=lambda finding: (finding.verdict is Verdict.FAIL, finding.ratio))
        yield Catch(
            check=name,
            kind="differential" if name in WITH_BUDGET else None,
            killed=largest.verdict is Verdict.FAIL,
            margin=largest.ratio,
            case=largest.case,
            where=largest.reason,
        )


def verdict_of(kills: Sequence[Kill]) -> Verdict:
    """FAIL if a fault survived or an equivalent mutant was flagged; ERROR and INCONCLUSIVE as everywhere."""
    return fold(kill.outcome.verdict for kill in kills)

"""What an exact check is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from verify.cases import Case
from verify.checks.cases import CaseName
from verify.verdict import Verdict

if TYPE_CHECKING:
    from verify.checks.bench import Bench

ExactCheckName = Literal[
    "branch-isolation",
    "group-isolation",
    "causality",
    "reach",
    "row-map",
    "absolute-positions",
    "permutation",
    "repeat",
    "normalisation",
    "own-objective",
    "optimizer-steps",
    "gradient-checkpointing",
    "dropout",
    "no-cross-attention",
    "no-boundary-target",
    "no-padding-in-loss",
    "positions-as-unpacked",
    "same-number-of-targets",
]
EXACT_CHECK_NAMES: tuple[ExactCheckName, ...] = get_args(ExactCheckName)


class NotApplicableError(Exception):
    """A check cannot be put to this subject; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a check saw on one case.

    Args:
        num_compared: Values that were held against what they must be.
        num_differing: How many are not what they must be.
        worst: The largest or first of them by meaning; "" where there is none.
        ratio: Largest difference / budget; without a budget 0 where nothing differs, else infinite.
    """

    num_compared: int
    num_differing: int
    worst: str
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCheck:
    """A check that any subject can be put to.

    Args:
        name: Stable id.
        claims: What a PASS says.
        cannot_see: What it says nothing about.
        cases: The cases that it is run on, each for itself.
        measure: Puts the check to the subject of a bench on one case. Raises NotApplicableError where it cannot be,
            SubjectError where the subject breaks its contract.
        of_rewards: Puts it to the rewards of a reward model, on cases of that objective; None where it is about
            something that a reward model has not.
    """

    name: ExactCheckName
    claims: str
    cannot_see: str
    cases: tuple[CaseName, ...]
    measure: Callable[[Bench, Case], Measured]
    of_rewards: Callable[[Bench, Case], Measured] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check of one subject on one case in one dtype.

    Args:
        check: Name of the check.
        subject: Name of the subject.
        dtype: Name of the dtype.
        case: Name of the case.
        verdict: PASS, FAIL, ERROR or NOT_APPLICABLE.
        reason: Why it is not PASS; "" where it is.
        num_compared: As in :class:`Measured`.
        num_differing: As in :class:`Measured`.
        ratio: As in :class:`Measured`.
    """

    check: ExactCheckName
    subject: str
    dtype: str
    case: str
    verdict: Verdict
    reason: str = ""
    num_compared: int = 0
    num_differing: int = 0
    ratio: float = 0.0

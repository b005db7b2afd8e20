"""What a check beside parity found."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verify.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check in one precision.

    Args:
        check: Name of the check.
        precision: Name of the precision.
        subject: Name of the subject.
        verdict: PASS or FAIL; NOT_APPLICABLE where the check has to abstain.
        num_compared: Number of values that were compared; 0 where nothing was.
        ratio: The worst difference over what may differ; infinite where nothing may, or where it is no number.
        worst: What is worst, or why the check abstains; empty on PASS.
    """

    check: str
    precision: str
    subject: str
    verdict: Verdict
    num_compared: int
    ratio: float
    worst: str


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a value is from what it must be.

    Args:
        what: What it is.
        distance: How far.
        allowed: How far it may be.
    """

    what: str
    distance: float
    allowed: float = 0.0

    @property
    def ratio(self) -> float:
        """Distance / allowed; infinite where the distance is no number, or where nothing may differ and does."""
        if self.distance == 0:
            return 0.0
        return self.distance / self.allowed if self.allowed and not math.isnan(self.distance) else math.inf


def found(check: str, precision: str, subject: str, differences: list[Difference], *, num_compared: int = 0) -> Finding:
    """A finding from all that was compared.

    Args:
        check: Name of the check.
        precision: Name of the precision.
        subject: Name of the subject.
        differences: At least one.
        num_compared: Number of values; of differences if 0.

    Returns:
        The finding.
    """
    worst = max(differences, key=lambda difference: difference.ratio)
    passed = worst.ratio <= 1  # not "> 1 fails": NaN never passes
    return Finding(
        check=check,
        precision=precision,
        subject=subject,
        verdict=Verdict.PASS if passed else Verdict.FAIL,
        num_compared=num_compared or len(differences),
        ratio=worst.ratio,
        worst="" if passed else f"{worst.what} is {worst.distance:.3g} off, {worst.allowed:.3g} is allowed",
    )


def abstained(check: str, precision: str, subject: str, reason: str) -> Finding:
    """The finding of a check that cannot say anything here."""
    return Finding(
        check=check,
        precision=precision,
        subject=subject,
        verdict=Verdict.NOT_APPLICABLE,
        num_compared=0,
        ratio=0.0,
        worst=reason,
    )

"""What a run judged: each measured difference and its budget, results of subjects on cases, exact checks."""

from __future__ import annotations

from collections import Counter
from typing import Literal, Self

from pydantic import model_validator

from reports.claims import CountsByVerdict, check_explained, check_pass
from reports.record_names import DtypeName, QuantityName, VerdictName
from reports.values import Count, Measured, RecordPart, Text


class PlaceRecord(RecordPart):
    """A place where actual and expected differ most, by meaning."""

    where: Text
    """E.g. "group 0, chosen, token 3 of 7, predicted from response token 2" or a parameter's name."""
    actual: Measured
    expected: Measured
    measured: Measured
    budget: Measured


class JudgementRecord(RecordPart):
    """One measured difference held against one budget."""

    quantity: QuantityName
    budget_kind: Literal["oracle", "differential"]
    """Distance to the oracle, or to the unpacked witness."""
    statistic: Literal["max", "rms"]
    unit: Literal["nats", "relative", "share"]
    verdict: VerdictName
    reason: Text
    """Empty on PASS."""
    num_compared: Count
    measured: Measured | None
    """None where nothing was measured (NOT_APPLICABLE)."""
    budget: Measured | None
    witness_error: Measured | None
    """The unpacked path's own error (oracle) or the spread of its harmless variations (differential)."""
    witness_from: Text
    """What ``witness_error`` was measured on: "unpacked witness", "variation eager", "log-prob budgets"."""
    factor: Measured | None
    floor: Measured | None
    signed_mean: Measured | None
    worst: list[PlaceRecord]

    @model_validator(mode="after")
    def _pass_is_within_its_budget(self) -> Self:
        if self.verdict != "PASS":
            return self
        if self.num_compared == 0 or self.measured is None or self.budget is None:
            raise ValueError(f"{self.quantity} is PASS, but nothing was compared")
        if not self.measured <= self.budget:  # also where either is NaN
            raise ValueError(f"{self.quantity} is PASS, but measured {self.measured} against a budget of {self.budget}")
        return self


class SlotsRecord(RecordPart):
    """Token slots that passed the embedding in policy and reference pass: the proof that the packed path ran."""

    slots: Count
    rows: Count
    forward_calls: Count
    pairwise_slots: Count
    """What one unpadded row per completion would have fed."""
    images: Count = 0
    """Images that passed the tower that sees them."""
    pairwise_images: Count = 0
    """What one row per completion would have run through it."""


class DecisionsRecord(RecordPart):
    """Which response of each pair the rewards prefer, packed against unpacked; a tie is half right."""

    num_pairs: Count
    flipped: Count
    ties: Count
    """Margins of exactly 0 on the packed path."""
    halves_right: Count
    """Twice the right decisions of the packed path."""
    expected_halves_right: Count
    """Twice those of the unpacked path."""

    @model_validator(mode="after")
    def _are_of_these_pairs(self) -> Self:
        right = max(self.halves_right, self.expected_halves_right)
        if max(self.flipped, self.ties) > self.num_pairs or right > 2 * self.num_pairs:
            raise ValueError(f"decisions: more flipped, tied or right than there are pairs ({self.num_pairs})")
        return self


class ResultRecord(RecordPart):
    """One subject on one case in one dtype."""

    case: Text
    subject: Text
    dtype: DtypeName
    verdict: VerdictName
    reasons: list[Text]
    judgements: list[JudgementRecord]
    slots: SlotsRecord | None
    num_compared: Count
    """Values compared, over all judgements of this result."""
    decisions: DecisionsRecord | None = None
    """None under SFT, where no response was preferred to another, and in records before version 4."""

    @model_validator(mode="after")
    def _verdict_rests_on_judgements(self) -> Self:
        judged: Counter[str] = Counter(judgement.verdict for judgement in self.judgements)
        check_pass(self.verdict, f"case {self.case}", self.num_compared, judged, "judgement")
        check_explained(self.verdict, f"case {self.case}", self.reasons, judged, "judgement")
        compared = sum(judgement.num_compared for judgement in self.judgements)
        if self.num_compared != compared:
            raise ValueError(
                f"case {self.case}: num_compared is {self.num_compared}, but its judgements have {compared}"
            )
        return self


class SubjectSummary(RecordPart):
    """One subject in one dtype, over all cases; the proof that the packed path ran is judged here."""

    subject: Text
    dtype: DtypeName
    verdict: VerdictName
    reasons: list[Text]
    cases_by_verdict: CountsByVerdict
    slots: Count
    pairwise_slots: Count
    worst_ratio: dict[str, Measured]
    """Largest measured / budget for each quantity."""

    @model_validator(mode="after")
    def _verdict_rests_on_cases(self) -> Self:
        passed = self.cases_by_verdict.get("PASS", 0)
        what = f"{self.subject} in {self.dtype}"
        check_pass(self.verdict, what, passed, self.cases_by_verdict, "case")
        check_explained(self.verdict, what, self.reasons, self.cases_by_verdict, "case")
        return self


class ExactCheckRecord(RecordPart):
    """One exact check of one subject: no tolerance, or one that follows from rounding alone."""

    check: Text
    """Its name in docs/checks.md, e.g. "branch-isolation"."""
    subject: Text
    dtype: DtypeName
    case: Text
    verdict: VerdictName
    reason: Text
    """Empty on PASS; otherwise what differs and where, by meaning."""
    num_compared: Count
    num_differing: Count

    @model_validator(mode="after")
    def _pass_compared_something(self) -> Self:
        if self.verdict == "PASS" and (self.num_compared == 0 or self.num_differing):
            raise ValueError(
                f"{self.check} of {self.subject} is PASS with {self.num_compared} values compared and "
                f"{self.num_differing} of them different"
            )
        return self

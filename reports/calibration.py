"""The record of a calibration: how far honest and faulty subjects were from their budgets, as distributions.

Ratios are measured / budget: an honest one should stay below 1, that of a planted fault above. They are kept as counts
in bins of equal width on a log axis and, at the end that matters, exactly; so the record of a million results is small,
and two records can be added.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from reports.record_names import CaseKind, DtypeName, QuantityName, VerdictName
from reports.record_setting import Environment, ModelRecord
from reports.values import Count, Measured, RecordPart, Settings

DrawnKind = CaseKind | Literal["objectives"]
"""Kind of the cases; under objectives, groups under every preference objective."""

CALIBRATION_VERSION: Literal[1] = 1
BINS_PER_DECADE = 25
KEPT = 40
"""How many values of the end that matters are kept exactly."""

PopulationName = Literal["honest", "fault"]
Share = Annotated[float, Field(ge=0, le=1)]


def rounded(value: float) -> float:
    """Six significant digits: what is kept is read by people, in the thousands."""
    return float(f"{value:.6g}")


class Distribution(RecordPart):
    """Values on a log axis.

    Bin b counts values from 10^(b / 25) to 10^((b + 1) / 25).
    """

    num_values: Count
    zeros: Count
    infinite: Count
    bins: list[tuple[int, Annotated[int, Field(gt=0)]]]
    """Bin and count, in the order of the bins; empty ones are left out."""
    end: Literal["largest", "smallest"]
    """Which end is kept exactly."""
    exact: list[Measured]
    """The values of that end, the outermost first."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.num_values != self.zeros + self.infinite + sum(count for _, count in self.bins):
            raise ValueError(f"{self.num_values} values, but the bins hold another number")
        if [number for number, _ in self.bins] != sorted({number for number, _ in self.bins}):
            raise ValueError("bins are not in order")
        if len(self.exact) != min(self.num_values, KEPT) or self.exact != sorted(
            self.exact, reverse=self.end == "largest"
        ):
            raise ValueError(f"{len(self.exact)} {self.end} values are kept of {self.num_values}, or out of order")
        return self

    @classmethod
    def of(cls, values: Iterable[float], end: Literal["largest", "smallest"]) -> Distribution:
        """The distribution of values that are not negative and not NaN."""
        kept = sorted(values, reverse=end == "largest")
        counts = Counter(math.floor(math.log10(v) * BINS_PER_DECADE) for v in kept if 0 < v < math.inf)
        return cls(
            num_values=len(kept),
            zeros=sum(v == 0 for v in kept),
            infinite=sum(v == math.inf for v in kept),
            bins=sorted(counts.items()),
            end=end,
            exact=[rounded(value) for value in kept[:KEPT]],
        )

    @classmethod
    def sum(cls, parts: Sequence[Distribution]) -> Distribution:
        """The values of all parts together, at least one; all of one end."""
        counts: Counter[int] = Counter()
        for part in parts:
            counts.update(dict(part.bins))
        end = parts[0].end
        return cls(
            num_values=sum(part.num_values for part in parts),
            zeros=sum(part.zeros for part in parts),
            infinite=sum(part.infinite for part in parts),
            bins=sorted(counts.items()),
            end=end,
            exact=sorted((rounded(v) for part in parts for v in part.exact), reverse=end == "largest")[:KEPT],
        )

    def quantile(self, share: float) -> float:
        """The smallest value that at least this share of the values does not exceed.

        To six digits among the values that are kept; elsewhere the upper edge of a bin, at most 10 % above.

        >>> Distribution.of([0.1, 0.2, 0.4, 0.8], "largest").quantile(0.5)
        0.2
        """
        if self.num_values == 0:
            return math.nan
        rank = min(self.num_values, max(1, math.ceil(share * self.num_values - 1e-9)))  # of the smallest is 1
        place = rank - 1 if self.end == "smallest" else self.num_values - rank
        if place < len(self.exact):
            return self.exact[place]
        passed = self.zeros
        if rank <= passed:
            return 0.0
        for number, count in self.bins:
            passed += count
            if rank <= passed:
                return float(10 ** ((number + 1) / BINS_PER_DECADE))
        return math.inf

    @property
    def outermost(self) -> float:
        """The largest or the smallest value, whichever end is kept; NaN without values."""
        return self.exact[0] if self.exact else math.nan


class Series(RecordPart):
    """One distribution and what it is of."""

    population: PopulationName
    dtype: DtypeName
    measure: Literal["ratio", "factor"]
    """Measured / budget, or the factor that would have sufficed."""
    quantity: QuantityName | Literal["any"]
    """"any": of each result the largest."""
    distance: Literal["oracle", "differential", "any"]
    distribution: Distribution


class ExtremeRecord(RecordPart):
    """One result, and the judgement that was nearest to its budget, or furthest beyond."""

    ratio: Measured
    dtype: DtypeName
    batch: Count
    case: str
    shape: str
    subject: str
    quantity: QuantityName | Literal["structure"]
    distance: Literal["oracle", "differential", ""]
    statistic: Literal["max", "rms", ""]
    beta: FiniteFloat
    label_smoothing: FiniteFloat


class SubjectTally(RecordPart):
    """An honest subject or a fault in one dtype, over all batches."""

    population: PopulationName
    dtype: DtypeName
    name: str
    num_results: Count
    beyond: Count
    """Results over budget: false alarms of an honest subject, catches of a fault."""
    outermost: Measured
    """The largest ratio of an honest subject, the smallest of a fault."""
    expected: bool
    """Of a fault: whether it must be caught in this dtype."""

    @model_validator(mode="after")
    def _not_more_than_all(self) -> Self:
        if self.beyond > self.num_results:
            raise ValueError(f"{self.name}: {self.beyond} of {self.num_results} results are over budget")
        return self


class BatchRecord(RecordPart):
    """One run of the gate: what is kept of it."""

    number: Count
    dtype: DtypeName
    num_cases: Count
    num_completion_tokens: Count
    processor_s: FiniteFloat
    results_by_verdict: dict[PopulationName, dict[str, Count]]
    largest_honest: Measured
    """The largest ratio among the honest results; 0 where there is none."""
    series: list[Series]
    tallies: list[SubjectTally]
    extremes: list[ExtremeRecord]
    """The honest result nearest to its budget, every one beyond, and the weakest result of each fault."""


class RunSizeRecord(RecordPart):
    """Batches of one size in one dtype."""

    dtype: DtypeName
    num_cases: Count
    num_batches: Count
    with_alarm: Count
    largest_honest: Measured


class BoundRecord(RecordPart):
    """What follows for the rate of false alarms."""

    dtype: DtypeName | Literal["all"]
    what: str
    num_runs: Count
    with_alarm: Count
    upper_95: Share
    """Upper end of the one-sided 95 % confidence interval (Clopper-Pearson)."""


class TailRecord(RecordPart):
    """Largest honest ratio of a batch beyond a threshold, extrapolated to 1."""

    dtype: DtypeName
    num_batches: Count
    threshold: Measured
    num_beyond: Count
    scale: Measured
    shape: Measured
    """Of the generalised Pareto distribution; 0 is an exponential tail, below 0 there is a largest value."""
    alarm_rate_exponential: Share
    alarm_rate_pareto: Share


class CalibrationRecord(RecordPart):
    """A whole calibration."""

    schema_version: Literal[1] = CALIBRATION_VERSION
    kind: Literal["calibration"] = "calibration"
    tool_version: str
    hypothesis_version: str
    command: list[str]
    created_utc: str
    verdict: VerdictName
    reasons: list[str]
    environment: Environment
    model: ModelRecord
    seed: Count
    case_kind: DrawnKind = "pairs"
    dtypes: list[DtypeName]
    num_batches: Count
    num_cases: Count
    num_completion_tokens: Count
    policy: Settings
    variations: list[str]
    results_by_verdict: dict[PopulationName, dict[str, Count]]
    run_sizes: list[RunSizeRecord]
    bounds: list[BoundRecord]
    tails: list[TailRecord]
    series: list[Series]
    tallies: list[SubjectTally]
    honest_extremes: list[ExtremeRecord]
    """The honest results nearest to their budgets, in each dtype, or beyond."""
    fault_extremes: list[ExtremeRecord]
    """The weakest planted faults in each dtype."""
    largest_honest: dict[DtypeName, list[Measured]]
    """Of each batch, in the order of the batches."""
    processor_s: FiniteFloat
    notes: list[str]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.num_batches != sum(len(values) for values in self.largest_honest.values()):
            raise ValueError(f"{self.num_batches} batches, but another number of largest ratios")
        if self.num_batches != sum(size.num_batches for size in self.run_sizes):
            raise ValueError(f"{self.num_batches} batches, but the run sizes hold another number")
        if self.num_cases != sum(size.num_batches * size.num_cases for size in self.run_sizes):
            raise ValueError(f"{self.num_cases} cases, but the run sizes hold another number")
        for population in ("honest", "fault"):
            judged = sum(self.results_by_verdict.get(population, {}).get(v, 0) for v in ("PASS", "FAIL"))
            counted = sum(t.num_results for t in self.tallies if t.population == population)
            drawn = sum(
                s.distribution.num_values
                for s in self.series
                if (s.population, s.measure, s.quantity) == (population, "ratio", "any")
            )
            if not judged == counted == drawn:
                raise ValueError(f"{judged} {population} results were judged, {counted} are tallied, {drawn} drawn")
        return self

    @model_validator(mode="after")
    def _pass_means_no_alarm(self) -> Self:
        honest = self.results_by_verdict.get("honest", {})
        if self.verdict == "PASS" and (not honest.get("PASS") or honest.get("FAIL") or honest.get("ERROR")):
            raise ValueError(f"the calibration is PASS, but honest results are {honest}")
        return self

    def distribution(
        self,
        population: PopulationName,
        dtype: str,
        quantity: str = "any",
        distance: str = "any",
        measure: str = "ratio",
    ) -> Distribution | None:
        """One distribution, or None where nothing of the kind was measured."""
        for s in self.series:
            if (s.population, s.dtype, s.quantity, s.distance, s.measure) == (
                population, dtype, quantity, distance, measure,
            ):  # fmt: skip
                return s.distribution
        return None

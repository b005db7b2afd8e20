"""From batches, one at a time, to the record of a calibration: what is held does not grow with the number of cases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, cast

from reports.calibration import (
    BatchRecord,
    BoundRecord,
    CalibrationRecord,
    Distribution,
    ExtremeRecord,
    PopulationName,
    RunSizeRecord,
    Series,
    SubjectTally,
    TailRecord,
    rounded,
)
from reports.record_names import DtypeName, VerdictName
from reports.record_setting import Environment
from verify.calibration.batch import PACKED_PER_BATCH, RUN_SIZES
from verify.calibration.bounds import fit_tail, upper_bound
from verify.calibration.kinds import DrawnKind, case_kind
from verify.gate import GateRequest
from verify.models.request import build_model
from verify.recording import model_record
from verify.subjects.packed import PACKED_SUBJECTS
from verify.tolerance import Policy
from verify.tool_version import tool_version

_EXTREMES_KEPT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known about a calibration beside its batches.

    Args:
        command: The command line.
        environment: Versions and hardware.
        hypothesis_version: The version that drew the cases.
        seed: Seed of the calibration.
        dtypes: Names of dtypes.
        case_kind: Kind of all cases.
        policy: The tolerance policy.
        template: The request of one batch, for what all have in common.
    """

    command: Sequence[str]
    environment: Environment
    hypothesis_version: str
    seed: int
    dtypes: Sequence[str]
    case_kind: DrawnKind
    policy: Policy
    template: GateRequest


@dataclass(slots=True)
class _Totals:
    num_batches: int = 0
    num_completion_tokens: int = 0
    processor_s: float = 0.0
    verdicts: dict[PopulationName, Counter[str]] = field(
        default_factory=lambda: {"honest": Counter(), "fault": Counter()}
    )
    series: dict[tuple[str, ...], Series] = field(default_factory=dict)
    tallies: dict[tuple[str, ...], SubjectTally] = field(default_factory=dict)
    extremes: dict[tuple[bool, DtypeName], list[ExtremeRecord]] = field(default_factory=lambda: defaultdict(list))
    largest: dict[DtypeName, list[float]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[tuple[DtypeName, int], list[bool]] = field(default_factory=lambda: defaultdict(list))
    largest_of_size: dict[tuple[DtypeName, int], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, batch: BatchRecord) -> None:
        self.num_batches += 1
        self.num_completion_tokens += batch.num_completion_tokens
        self.processor_s += batch.processor_s
        for population, counts in batch.results_by_verdict.items():
            self.verdicts[population].update(counts)
        for series in batch.series:
            key = (series.population, series.dtype, series.measure, series.quantity, series.distance)
            known = self.series.get(key)
            parts = [known.distribution, series.distribution] if known else [series.distribution]
            self.series[key] = series.model_copy(update={"distribution": Distribution.sum(parts)})
        for tally in batch.tallies:
            self._add_tally(tally)
        faults = {tally.name for tally in batch.tallies if tally.population == "fault"}
        for extreme in batch.extremes:
            is_fault = extreme.subject in faults
            kept = self.extremes[is_fault, extreme.dtype]
            kept.append(extreme)
            kept.sort(key=lambda e: (e.ratio if is_fault else -e.ratio, e.batch, e.case, e.subject))
            del kept[_EXTREMES_KEPT:]
        self.largest[batch.dtype].append(rounded(batch.largest_honest))
        size = batch.dtype, batch.num_cases
        self.sizes[size].append(bool(_alarms(batch.results_by_verdict["honest"])))
        self.largest_of_size[size] = max(self.largest_of_size[size], batch.largest_honest)

    def _add_tally(self, tally: SubjectTally) -> None:
        key = (tally.population, tally.dtype, tally.name)
        if (known := self.tallies.get(key)) is not None:
            outermost = max if tally.population == "honest" else min
            tally = tally.model_copy(
                update={
                    "num_results": known.num_results + tally.num_results,
                    "beyond": known.beyond + tally.beyond,
                    "outermost": outermost(known.outermost, tally.outermost),
                }
            )
        self.tallies[key] = tally


def summarise(batches: Iterable[BatchRecord], facts: RunFacts) -> CalibrationRecord:
    """Summarise a calibration.

    Args:
        batches: Its batches in their order.
        facts: What is known beside.

    Returns:
        The record. PASS where no honest result was over budget, FAIL where one was, ERROR where one could not be
        computed or nothing was judged.
    """
    totals = _Totals()
    for batch in batches:
        totals.add(batch)
    verdict, reasons = _verdict(totals)
    dtypes = cast(list[DtypeName], list(facts.dtypes))
    return CalibrationRecord(
        tool_version=tool_version(),
        hypothesis_version=facts.hypothesis_version,
        command=list(facts.command),
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict,
        reasons=reasons,
        environment=facts.environment,
        model=model_record(facts.template.model, build_model(facts.template.model, "float32")),
        seed=facts.seed,
        case_kind=facts.case_kind,
        dtypes=dtypes,
        num_batches=totals.num_batches,
        num_cases=sum(size * len(runs) for (_, size), runs in totals.sizes.items()),
        num_completion_tokens=totals.num_completion_tokens,
        policy=facts.policy.model_dump(),
        variations=list(facts.template.variations),
        results_by_verdict={population: dict(sorted(counts.items())) for population, counts in totals.verdicts.items()},
        run_sizes=_run_sizes(totals, dtypes),
        bounds=_bounds(totals, dtypes, facts.case_kind),
        tails=_tails(totals, dtypes),
        series=[totals.series[key] for key in sorted(totals.series)],
        tallies=[totals.tallies[key] for key in sorted(totals.tallies)],
        honest_extremes=[extreme for dtype in dtypes for extreme in totals.extremes[False, dtype]],
        fault_extremes=[extreme for dtype in dtypes for extreme in totals.extremes[True, dtype]],
        largest_honest={dtype: totals.largest[dtype] for dtype in dtypes if totals.largest[dtype]},
        processor_s=round(totals.processor_s, 1),
        notes=["weights and adapters have a seed of their own in each batch; the model recorded is that of batch 0"],
    )


def _alarms(honest: dict[str, int]) -> int:
    return honest.get("FAIL", 0) + honest.get("ERROR", 0)


def _verdict(totals: _Totals) -> tuple[VerdictName, list[str]]:
    honest = totals.verdicts["honest"]
    if honest["ERROR"]:
        return "ERROR", [f"{honest['ERROR']} honest results could not be computed"]
    if honest["FAIL"]:
        return "FAIL", [f"{honest['FAIL']} honest results are over budget: false alarms"]
    if not honest["PASS"]:
        return "ERROR", ["no honest result was judged"]
    return "PASS", []


def _run_sizes(totals: _Totals, dtypes: Sequence[DtypeName]) -> list[RunSizeRecord]:
    return [
        RunSizeRecord(
            dtype=dtype,
            num_cases=size,
            num_batches=len(totals.sizes[dtype, size]),
            with_alarm=sum(totals.sizes[dtype, size]),
            largest_honest=totals.largest_of_size[dtype, size],
        )
        for dtype in dtypes
        for size in RUN_SIZES
        if totals.sizes[dtype, size]
    ]


def _bounds(totals: _Totals, dtypes: Sequence[DtypeName], drawn: DrawnKind) -> list[BoundRecord]:
    """Batches are independent, results within one are not: so runs are counted, not results."""
    num_subjects = sum(case_kind(drawn) in subject.takes for subject in PACKED_SUBJECTS)
    covering = -(-num_subjects // PACKED_PER_BATCH)
    bounds = []
    for dtype in (*dtypes, "all"):
        of = [(size, runs) for (one, size), runs in sorted(totals.sizes.items()) if dtype in (one, "all")]
        every, long = [alarm for _, runs in of for alarm in runs], [a for size, runs in of if size == 19 for a in runs]
        for what, runs, times in (
            (f"a run of 1 to {max(RUN_SIZES)} cases and {PACKED_PER_BATCH + 1} subjects", every, 1),
            (
                f"a run of {max(RUN_SIZES)} cases and all {num_subjects} packed subjects "
                f"({covering} sets of {PACKED_PER_BATCH} cover them: {covering} times the rate of one)", long, covering,
            ),
        ):  # fmt: skip
            if runs:
                rate = min(1.0, times * upper_bound(sum(runs), len(runs)))
                bounds.append(
                    BoundRecord(
                        dtype=cast(Literal["all"], dtype),
                        what=what,
                        num_runs=len(runs),
                        with_alarm=sum(runs),
                        upper_95=rate,
                    )
                )
    return bounds


def _tails(totals: _Totals, dtypes: Sequence[DtypeName]) -> list[TailRecord]:
    tails = []
    for dtype in dtypes:
        tail = fit_tail(totals.largest[dtype])
        if tail is not None:
            tails.append(
                TailRecord(
                    dtype=dtype,
                    num_batches=len(totals.largest[dtype]),
                    threshold=tail.threshold,
                    num_beyond=tail.num_beyond,
                    scale=tail.scale,
                    shape=tail.shape,
                    alarm_rate_exponential=tail.rate_exponential,
                    alarm_rate_pareto=tail.rate_pareto,
                )
            )
    return tails

"""Running a batch, and what is kept of its results."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast

from reports.calibration import BatchRecord, Distribution, ExtremeRecord, Series, SubjectTally
from reports.record_names import DtypeName, QuantityName
from verify.calibration.batch import Batch, Population, draw_batch
from verify.calibration.kinds import DrawnKind
from verify.faults.catalogue import FAULTS
from verify.gate import Result, run_gate
from verify.judgement import Judgement
from verify.objective import preference_beside
from verify.threads import torch_threads
from verify.tolerance import Policy
from verify.verdict import Verdict

_Distance = Literal["oracle", "differential", "any"]
_Key = tuple[Literal["ratio", "factor"], QuantityName | Literal["any"], _Distance]
"""Measure, quantity, distance."""
_DIRECT = ("per_token_logps", "ref_per_token_logps", "gradients")
"""Quantities whose budget is a multiple of noise; those of the others follow from it."""
_END: dict[Population, Literal["largest", "smallest"]] = {"honest": "largest", "fault": "smallest"}
_DTYPES_OF_FAULT = {f"fault:{fault.name}": fault.dtypes for fault in FAULTS}


def measure_batch(
    seed: int, number: int, dtypes: Sequence[str], policy: Policy, kind: DrawnKind = "pairs"
) -> BatchRecord:
    """Draw a batch, run it in one thread, and keep its ratios.

    Args:
        seed: Seed of the calibration.
        number: Number of the batch.
        dtypes: Names of dtypes.
        policy: The tolerance policy.
        kind: Kind of its cases.

    Returns:
        What is kept.
    """
    before = time.process_time()
    batch = draw_batch(seed, number, dtypes, policy, kind)
    with torch_threads(1):
        outcome = run_gate(batch.request, lambda done, total, text: None)
    return keep(batch, outcome.results, processor_s=time.process_time() - before)


def keep(batch: Batch, results: Sequence[Result], *, processor_s: float) -> BatchRecord:
    """Ratios of all results that were judged; of the others only their number."""
    dtype = cast(DtypeName, batch.request.dtypes[0])
    verdicts: dict[Population, Counter[str]] = {"honest": Counter(), "fault": Counter()}
    judged: dict[Population, list[Result]] = {"honest": [], "fault": []}
    for result in results:
        population = batch.populations[result.subject]
        verdicts[population][result.verdict.value] += 1
        if result.verdict in (Verdict.PASS, Verdict.FAIL):
            judged[population].append(result)
    ratios = [ratio_of_result(result) for result in judged["honest"]]
    return BatchRecord(
        number=batch.number,
        dtype=dtype,
        num_cases=len(batch.request.cases),
        num_completion_tokens=sum(case.num_completion_tokens for case in batch.request.cases),
        processor_s=round(processor_s, 2),
        results_by_verdict={population: dict(sorted(counts.items())) for population, counts in verdicts.items()},
        largest_honest=max(ratios, default=0.0),
        series=[series for population in judged for series in _series(population, dtype, judged[population])],
        tallies=[tally for population in judged for tally in _tallies(population, dtype, judged[population])],
        extremes=[*_honest_extremes(batch, judged["honest"]), *_fault_extremes(batch, judged["fault"])],
    )


def ratio_of_result(result: Result) -> float:
    """The largest measured / budget of a result; infinite where it failed without a value (another structure)."""
    if result.verdict is Verdict.FAIL and not result.judgements:
        return math.inf
    return max(_ratio(judgement) for judgement in _measured(result))


def _measured(result: Result) -> list[Judgement]:
    return [judgement for judgement in result.judgements if judgement.measured is not None]


def _ratio(judgement: Judgement) -> float:
    """Infinite where the actual value is not finite."""
    return judgement.ratio if not math.isnan(judgement.ratio) else math.inf


def needed_factor(judgement: Judgement) -> float | None:
    """The factor at which the measured difference would just have been within budget: (measured - floor) / noise.

    None where the budget is not a multiple of noise, or where there is no noise.
    """
    if judgement.quantity not in _DIRECT or judgement.measured is None or judgement.budget is None:
        return None
    if not judgement.budget.noise > 0:
        return None
    factor = (judgement.measured - judgement.budget.floor) / judgement.budget.noise
    return max(0.0, factor) if math.isfinite(factor) else math.inf


def _series(population: Population, dtype: DtypeName, results: Sequence[Result]) -> Iterable[Series]:
    values: defaultdict[_Key, list[float]] = defaultdict(list)
    for result in results:
        values["ratio", "any", "any"].append(ratio_of_result(result))
        largest: defaultdict[_Key, float] = defaultdict(float)
        for judgement in _measured(result):
            distance: _Distance = judgement.kind if population == "honest" else "any"
            ratio: _Key = "ratio", judgement.quantity, distance
            largest[ratio] = max(largest[ratio], _ratio(judgement))
            if population == "honest" and (needed := needed_factor(judgement)) is not None:
                factor: _Key = "factor", judgement.quantity, distance
                largest[factor] = max(largest[factor], needed)
        for key, value in largest.items():
            values[key].append(value)
    for (measure, quantity, distance), of_key in sorted(values.items()):
        yield Series(
            population=population,
            dtype=dtype,
            measure=measure,
            quantity=quantity,
            distance=distance,
            distribution=Distribution.of(of_key, _END[population]),
        )


def _tallies(population: Population, dtype: DtypeName, results: Sequence[Result]) -> Iterable[SubjectTally]:
    by_subject: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_subject[result.subject].append(result)
    for name, own in sorted(by_subject.items()):
        ratios = [ratio_of_result(result) for result in own]
        yield SubjectTally(
            population=population,
            dtype=dtype,
            name=name,
            num_results=len(own),
            beyond=sum(result.verdict is Verdict.FAIL for result in own),
            outermost=max(ratios) if population == "honest" else min(ratios),
            expected=population == "fault" and dtype in _DTYPES_OF_FAULT[name],
        )


def _honest_extremes(batch: Batch, results: Sequence[Result]) -> list[ExtremeRecord]:
    extremes = sorted((_extreme(batch, result) for result in results), key=lambda e: -e.ratio)
    return extremes[:1] + [extreme for extreme in extremes[1:] if extreme.ratio > 1]


def _fault_extremes(batch: Batch, results: Sequence[Result]) -> list[ExtremeRecord]:
    weakest: dict[str, ExtremeRecord] = {}
    for result in results:
        extreme = _extreme(batch, result)
        if result.subject not in weakest or extreme.ratio < weakest[result.subject].ratio:
            weakest[result.subject] = extreme
    return list(weakest.values())


def _extreme(batch: Batch, result: Result) -> ExtremeRecord:
    measured = _measured(result)
    worst = max(measured, key=_ratio) if measured else None
    objective = preference_beside(batch.request.objective)
    shapes: Mapping[str, str] = {case.name: case.why for case in batch.request.cases}
    return ExtremeRecord(
        ratio=ratio_of_result(result),
        dtype=cast(DtypeName, result.dtype),
        batch=batch.number,
        case=result.case,
        shape=shapes[result.case],
        subject=result.subject,
        quantity=worst.quantity if worst else "structure",
        distance=worst.kind if worst else "",
        statistic=worst.statistic if worst else "",
        beta=objective.beta,
        label_smoothing=objective.label_smoothing,
    )

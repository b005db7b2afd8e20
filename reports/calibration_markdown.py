"""A calibration as GitHub Markdown: the tables of docs/tolerances.md come from here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from reports.calibration import CalibrationRecord, Distribution, ExtremeRecord
from reports.markdown import escape
from reports.record_names import QuantityName
from reports.words import DISTANCES, NONE, QUANTITIES, number, percent

_ANY = "any quantity"
_HONEST = (0.5, 0.99, 0.999, 1.0)
"""Quantiles shown of honest results."""


def render(record: CalibrationRecord) -> str:
    """Render as GitHub Markdown.

    Args:
        record: The calibration.

    Returns:
        Markdown; text that comes from the run is escaped.
    """
    return "\n\n".join(_blocks(record)) + "\n"


def _blocks(record: CalibrationRecord) -> Iterable[str]:
    yield "# Calibration: errors as multiples of the budget"
    yield f"**{record.verdict}**" + (f" · {escape('; '.join(record.reasons))}" if record.reasons else "")
    yield escape(
        f"packparity {record.tool_version}, {record.num_cases:,} random cases of {record.case_kind} with "
        f"{record.num_completion_tokens:,} response tokens in {record.num_batches:,} runs of the gate "
        f"({', '.join(record.dtypes)} in turn), seed "
        f"{record.seed}, hypothesis {record.hypothesis_version}; model {record.model.name}, "
        f"{record.model.num_layers} layers, weights anew in each run; {record.processor_s:,.0f} s of processor time"
    )
    yield escape("; ".join(_counts(record)))
    yield "![Distributions of honest and fault errors over budget](calibration.svg)"
    yield "## Honest error / budget\n\n" + honest_table(record)
    yield "## Factor that would have sufficed\n\n" + honest_table(record, "factor")
    yield "## Fault error / budget\n\n" + fault_table(record)
    yield "## False alarms\n\n" + bounds_table(record) + "\n\n" + tails_table(record) + "\n\n" + sizes_table(record)
    yield "## Honest results nearest to their budgets\n\n" + _extremes(record.honest_extremes)
    yield "## Weakest planted faults\n\n" + _extremes(record.fault_extremes)
    yield "## Faults that some case did not show\n\n" + missed_table(record)
    if record.notes:
        yield "## Notes\n\n" + "\n".join(f"- {escape(note)}" for note in record.notes)


def honest_table(record: CalibrationRecord, measure: Literal["ratio", "factor"] = "ratio") -> str:
    """Quantiles over honest results, by dtype, quantity and distance.

    Args:
        record: The calibration.
        measure: Error / budget, or the factor that would have sufficed where a budget is a multiple of noise.
    """
    rows = []
    for dtype in record.dtypes:
        if (whole := record.distribution("honest", dtype, measure=measure)) is not None:
            rows.append([dtype, _ANY, f"{whole.num_values:,}", *_honest_quantiles(whole), *[""] * len(_HONEST)])
        for quantity, words in QUANTITIES.items():
            found = [record.distribution("honest", dtype, quantity, distance, measure) for distance in DISTANCES]
            if any(found):
                count = max(d.num_values for d in found if d is not None)
                rows.append([dtype, words, f"{count:,}", *(cell for d in found for cell in _honest_quantiles(d))])
    columns = [
        f"to the {words}: {name}" for words in DISTANCES.values() for name in ("median", "99 %", "99.9 %", "largest")
    ]
    return table(["dtype", "quantity", "results", *columns], rows)


def _honest_quantiles(distribution: Distribution | None) -> list[str]:
    if distribution is None:
        return [NONE] * len(_HONEST)
    return [number(distribution.quantile(share)) for share in _HONEST]


def fault_table(record: CalibrationRecord) -> str:
    """Quantiles of fault error / budget, by dtype and quantity."""
    rows = []
    for dtype in record.dtypes:
        for quantity, words in (("any", _ANY), *QUANTITIES.items()):
            if (d := record.distribution("fault", dtype, quantity)) is not None:
                rows.append([dtype, words, f"{d.num_values:,}", number(d.outermost), *_quantiles(d, (0.01, 0.5))])
    return table(["dtype", "quantity", "results", "smallest", "1 %", "median"], rows)


def bounds_table(record: CalibrationRecord) -> str:
    """Bounds on the rate of false alarms that need no assumption on the tail."""
    rows = [[b.dtype, escape(b.what), f"{b.num_runs:,}", str(b.with_alarm), percent(b.upper_95)] for b in record.bounds]
    return table(["dtype", "what", "runs", "with a false alarm", "rate below (95 %)"], rows)


def tails_table(record: CalibrationRecord) -> str:
    """Extrapolations of the tail."""
    rows = [
        [
            t.dtype, f"{t.num_batches:,}", number(t.threshold), str(t.num_beyond), number(t.shape),
            _rate(t.alarm_rate_exponential), _rate(t.alarm_rate_pareto),
        ]
        for t in record.tails
    ]  # fmt: skip
    header = ["dtype", "runs", "threshold", "beyond", "shape", "alarm rate, exponential tail", "with that shape"]
    return table(header, rows)


def sizes_table(record: CalibrationRecord) -> str:
    """The largest honest ratio by the number of cases of a run."""
    rows = [
        [s.dtype, str(s.num_cases), f"{s.num_batches:,}", str(s.with_alarm), number(s.largest_honest)]
        for s in record.run_sizes
    ]
    return table(["dtype", "cases in a run", "runs", "with a false alarm", "largest honest / budget"], rows)


def missed_table(record: CalibrationRecord) -> str:
    """Faults that passed on some case, with how often."""
    rows = [
        [t.dtype, escape(t.name), f"{t.num_results - t.beyond} of {t.num_results}", number(t.outermost)]
        for t in record.tallies
        if t.population == "fault" and t.expected and t.beyond < t.num_results
    ]
    return table(["dtype", "fault", "results within budget", "smallest"], rows) if rows else "None."


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are safe already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _quantiles(distribution: Distribution, shares: Sequence[float]) -> list[str]:
    return [number(distribution.quantile(share)) for share in shares]


def _words(quantity: QuantityName | Literal["structure"]) -> str:
    return quantity if quantity == "structure" else QUANTITIES[quantity]


def _rate(rate: float) -> str:
    return f"{rate:.1e}" if rate > 0 else "0"


def _counts(record: CalibrationRecord) -> Iterable[str]:
    for population, counts in record.results_by_verdict.items():
        yield f"{population} results: " + ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())


def _extremes(extremes: Sequence[ExtremeRecord]) -> str:
    rows = [
        [
            e.dtype, number(e.ratio), escape(e.subject), str(e.batch), escape(f"{e.case} ({e.shape})"),
            f"{_words(e.quantity)} {e.statistic} {e.distance}".strip(),
            f"{number(e.beta)}, {number(e.label_smoothing)}",
        ]
        for e in extremes
    ]  # fmt: skip
    return table(["dtype", "error / budget", "subject", "run", "case", "in", "beta, smoothing"], rows)

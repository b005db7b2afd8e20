"""The noise floor: how far the unpacked path is from the oracle, and from its own harmless variations.

Both are measured on the cases of the run, in the dtype of the run. A budget is a multiple of this noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from verify.comparison import Comparison, Quantity

BudgetKind = Literal["oracle", "differential"]
MEASURED_QUANTITIES: tuple[Quantity, ...] = ("per_token_logps", "ref_per_token_logps", "margins", "gradients")
WITNESS = "unpacked witness"


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise in one quantity.

    Args:
        max: Largest difference.
        rms: Root mean square difference.
        source: What showed it, e.g. "variation padded-left".
    """

    max: float
    rms: float
    source: str


@dataclass(frozen=True, slots=True)
class NoiseSample:
    """Comparisons of one case: witness against oracle, and each variation against the witness."""

    case: str
    witness: Sequence[Comparison]
    variations: Mapping[str, Sequence[Comparison]]


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Noise by case, and pooled over the cases of the run.

    Args:
        by_case: (case, kind, quantity, part) to the noise of that case.
        pooled_rms: (kind, quantity, part) to the RMS over all cases.
    """

    by_case: Mapping[tuple[str, BudgetKind, Quantity, str], Noise]
    pooled_rms: Mapping[tuple[BudgetKind, Quantity, str], float]


def measure_noise(samples: Sequence[NoiseSample]) -> NoiseFloor:
    """Collect the noise of all cases of one dtype.

    Pooling: sqrt(sum_cases n rms^2 / sum_cases n), n the number of values; for the differential kind the variation with
    the largest pooled RMS counts.

    Args:
        samples: One per case; at least one.

    Returns:
        The noise floor.

    Raises:
        ValueError: No sample, or a case without variations: there would be no floor for the differential budget.
    """
    if not samples:
        raise ValueError("no cases: there is no noise to measure")
    by_case: dict[tuple[str, BudgetKind, Quantity, str], Noise] = {}
    witness_runs: list[Sequence[Comparison]] = []
    variation_runs: dict[str, list[Sequence[Comparison]]] = {}
    for sample in samples:
        if not sample.variations:
            raise ValueError(f"case {sample.case}: no harmless variation was measured")
        for comparison in _measured(sample.witness):
            key = (sample.case, "oracle", comparison.quantity, comparison.part)
            by_case[key] = Noise(comparison.max, comparison.rms, WITNESS)  # type: ignore[index]
        witness_runs.append(sample.witness)
        for name, comparisons in sample.variations.items():
            variation_runs.setdefault(name, []).append(comparisons)
            for comparison in _measured(comparisons):
                _keep_larger(by_case, sample.case, comparison, f"variation {name}")
    pooled: dict[tuple[BudgetKind, Quantity, str], float] = {}
    for (quantity, part), rms in _pool(witness_runs).items():
        pooled["oracle", quantity, part] = rms
    for runs in variation_runs.values():
        for (quantity, part), rms in _pool(runs).items():
            pooled["differential", quantity, part] = max(rms, pooled.get(("differential", quantity, part), 0.0))
    return NoiseFloor(by_case, pooled)


def _measured(comparisons: Iterable[Comparison]) -> Iterable[Comparison]:
    return (comparison for comparison in comparisons if comparison.quantity in MEASURED_QUANTITIES)


def _keep_larger(
    by_case: dict[tuple[str, BudgetKind, Quantity, str], Noise], case: str, comparison: Comparison, source: str
) -> None:
    key: tuple[str, BudgetKind, Quantity, str] = (case, "differential", comparison.quantity, comparison.part)
    known = by_case.get(key)
    if known is None:
        by_case[key] = Noise(comparison.max, comparison.rms, source)
    else:
        by_case[key] = Noise(
            max(known.max, comparison.max),
            max(known.rms, comparison.rms),
            source if comparison.rms > known.rms else known.source,
        )


def _pool(runs: Sequence[Sequence[Comparison]]) -> dict[tuple[Quantity, str], float]:
    squares: dict[tuple[Quantity, str], float] = {}
    counts: dict[tuple[Quantity, str], int] = {}
    for comparisons in runs:
        for comparison in _measured(comparisons):
            key = (comparison.quantity, comparison.part)
            squares[key] = squares.get(key, 0.0) + comparison.num_compared * comparison.rms**2
            counts[key] = counts.get(key, 0) + comparison.num_compared
    return {key: math.sqrt(square / counts[key]) for key, square in squares.items()}

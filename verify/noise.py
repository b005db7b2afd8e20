"""The noise floor: how far the unpacked path, in all its harmless forms, is from the oracle and from itself.

The forms are the witness and its variations (other attention kernel, padding, masked-out tokens in front). Both
distances are measured on the cases of the run, in the dtype of the run. A budget is a multiple of this noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from verify.comparison import Comparison, Quantity

BudgetKind = Literal["oracle", "differential"]
_CaseKey = tuple[str, BudgetKind, Quantity, str]
MEASURED_QUANTITIES: tuple[Quantity, ...] = (
    "per_token_logps", "ref_per_token_logps", "router_probs", "router_shares", "margins", "gradients",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise in one quantity.

    Args:
        max: Largest difference.
        rms: Root mean square difference.
        source: Which form, or which two, showed it.
    """

    max: float
    rms: float
    source: str


@dataclass(frozen=True, slots=True)
class NoiseSample:
    """Comparisons of one case among the forms of the unpacked path.

    Args:
        case: Name of the case.
        to_oracle: Name of a form to its comparison with the oracle.
        between: "one against other" to the comparison of two forms.
    """

    case: str
    to_oracle: Mapping[str, Sequence[Comparison]]
    between: Mapping[str, Sequence[Comparison]]


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Noise by case, and pooled over the cases of the run.

    Args:
        by_case: (case, kind, quantity, part) to the noise of that case.
        pooled_rms: (kind, quantity, part) to the RMS over all cases.
    """

    by_case: Mapping[tuple[str, BudgetKind, Quantity, str], Noise]
    pooled_rms: Mapping[tuple[BudgetKind, Quantity, str], float]


def measure_noise(samples: Sequence[NoiseSample], *, not_pooled: Collection[str] = ()) -> NoiseFloor:
    """Collect the noise of all cases of one dtype.

    Of several forms (or pairs of forms) the one that differs most counts, in each case and over all cases.
    Over all cases: sqrt(sum_cases n rms^2 / sum_cases n), n the number of values.

    Args:
        samples: One per case; at least one.
        not_pooled: Names of cases that prove nothing and whose noise stays with them, unless there are no others.

    Returns:
        The noise floor.

    Raises:
        ValueError: No sample, or a case in which only one form of the unpacked path was run.
    """
    if not samples:
        raise ValueError("no cases: there is no noise to measure")
    by_case: dict[_CaseKey, Noise] = {}
    pooled: dict[tuple[BudgetKind, Quantity, str], float] = {}
    runs: dict[tuple[BudgetKind, str], list[Sequence[Comparison]]] = {}
    pool = {sample.case for sample in samples} - set(not_pooled) or set(not_pooled)
    for sample in samples:
        if not sample.to_oracle or not sample.between:
            raise ValueError(f"case {sample.case}: no harmless variation of the unpacked path was measured")
        measured: tuple[tuple[BudgetKind, Mapping[str, Sequence[Comparison]]], ...] = (
            ("oracle", sample.to_oracle),
            ("differential", sample.between),
        )
        for kind, forms in measured:
            for form, comparisons in forms.items():
                if sample.case in pool:
                    runs.setdefault((kind, form), []).append(comparisons)
                for comparison in _measured(comparisons):
                    _keep_larger(by_case, (sample.case, kind, comparison.quantity, comparison.part), comparison, form)
    for (kind, _), of_form in runs.items():
        for (quantity, part), rms in _pool(of_form).items():
            pooled[kind, quantity, part] = _larger(rms, pooled.get((kind, quantity, part), 0.0))
    return NoiseFloor(by_case, pooled)


def _measured(comparisons: Sequence[Comparison]) -> Iterable[Comparison]:
    """What noise is measured in. Rewards only where there are no log-probs that they follow from: a reward model's."""
    follow = any(comparison.quantity == "per_token_logps" for comparison in comparisons)
    wanted = MEASURED_QUANTITIES if follow else (*MEASURED_QUANTITIES, "rewards")
    return (comparison for comparison in comparisons if comparison.quantity in wanted)


def _keep_larger(by_case: dict[_CaseKey, Noise], key: _CaseKey, comparison: Comparison, form: str) -> None:
    known = by_case.get(key, Noise(0.0, 0.0, form))
    by_case[key] = Noise(
        _larger(comparison.max, known.max),
        _larger(comparison.rms, known.rms),
        form if not comparison.rms <= known.rms else known.source,
    )


def _larger(a: float, b: float) -> float:
    """The larger of two, NaN if either is: noise that cannot be measured leaves no budget."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _pool(runs: Sequence[Sequence[Comparison]]) -> dict[tuple[Quantity, str], float]:
    squares: dict[tuple[Quantity, str], float] = {}
    counts: dict[tuple[Quantity, str], int] = {}
    for comparisons in runs:
        for comparison in _measured(comparisons):
            key = (comparison.quantity, comparison.part)
            squares[key] = squares.get(key, 0.0) + comparison.num_compared * comparison.rms**2
            counts[key] = counts.get(key, 0) + comparison.num_compared
    return {key: math.sqrt(square / counts[key]) for key, square in squares.items()}

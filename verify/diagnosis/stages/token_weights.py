"""Which tokens weigh in a gradient what they should not."""

from __future__ import annotations

from collections.abc import Sequence

from verify.diagnosis.coefficients import Weights
from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.tokens import completion_tokens, describe, path_numbers, shared_tokens

_NO_WEIGHT = 0.1
_SOME_WEIGHT = 0.5
_OFF = 0.02
_FEW = 4


def out_of_place(weights: Weights, evidence: Evidence) -> str:
    """Supervised tokens without weight and others with one, in words to be put behind a sentence; "" without either.

    Args:
        weights: By token.
        evidence: The case.
    """
    lost, added = [], []
    for tokens, ratios, right in zip(
        completion_tokens(evidence.groups), weights.ratios, weights.right_ratios, strict=True
    ):
        if len(tokens) != len(ratios):
            continue
        weighed = list(zip(tokens, ratios.tolist(), right.tolist(), strict=True))
        lost += [token for token, ratio, due in weighed if due > 0 and abs(ratio) < _NO_WEIGHT]
        added += [token for token, ratio, due in weighed if due == 0 and abs(ratio) > _SOME_WEIGHT]
    said = f"; without weight: {describe(lost, evidence.groups)}" if lost else ""
    return said + (f"; counted though not supervised: {describe(added, evidence.groups)}" if added else "")


def describe_ratios(what: str, ratios: Sequence[float]) -> str:
    """What weighs how many times what it should, the most wrong first where there are many; at least one.

    >>> describe_ratios("groups", [1.0, 0.5, 1.0])
    'groups weigh 1, 0.5, 1 times what they should'
    >>> describe_ratios("groups", [1.0, 1.0, 1.0, 1.0, -1e-8])
    'of 5 groups number 4 weighs 0 times what it should'
    """
    rounded = [round(ratio, 5) + 0.0 for ratio in ratios]
    if len(rounded) <= _FEW:
        return f"{what} weigh {', '.join(f'{ratio:.5g}' for ratio in rounded)} times what they should"
    wrong = sorted((n for n, ratio in enumerate(rounded) if ratio != 1), key=lambda n: -abs(rounded[n] - 1))
    shown = ", ".join(f"number {n} weighs {rounded[n]:.5g}" for n in wrong[:_FEW])
    more = f" and {len(wrong) - _FEW} more wrongly" if len(wrong) > _FEW else ""
    return f"of {len(rounded)} {what} {shown} times what it should{more}"


def wrong_only_where_shared(weights: Weights, evidence: Evidence) -> str:
    """What the tokens that several responses share weigh, if they weigh wrongly and no others do; "" otherwise."""
    if weights.by_response or not weights.explained:
        return ""
    numbers, shared = path_numbers(evidence.groups), shared_tokens(evidence.groups)
    units = float(weights.basis.units.abs().max())
    off = (weights.values - weights.basis.weights).abs() > _OFF * units
    wrong = {
        (number, row)
        for path, rows in zip(numbers, weights.basis.members, strict=True)
        for number, row in zip(path[-len(rows) :], rows.tolist(), strict=True)
        if off[row]
    }
    if not wrong or not all(number in shared for number, _ in wrong):
        return ""
    ratios = sorted(float(weights.values[row] / weights.basis.weights[row]) for _, row in wrong)
    return f"{ratios[0]:.3g} to {ratios[-1]:.3g}" if ratios[-1] - ratios[0] > _OFF else f"{ratios[0]:.3g}"

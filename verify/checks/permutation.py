"""Branches and groups in another order have the same log-probs, but for rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured
from verify.checks.yardsticks import measured
from verify.comparison import compare_logps


def _measure(bench: Bench, case: Case) -> Measured:
    before = bench.logps(case.groups)
    exchanged = tuple(replace(group, positives=group.negatives, negatives=group.positives) for group in case.groups)
    backwards = tuple(reversed(case.groups))
    pairs = [before[k : k + 2] for k in range(0, len(before), 2)]
    runs: list[tuple[str, Sequence[Tensor], Sequence[Tensor]]] = [
        ("chosen and rejected exchanged", bench.logps(exchanged), [logps for pair in pairs for logps in pair[::-1]]),
        ("groups in reverse order", bench.logps(backwards), [logps for pair in pairs[::-1] for logps in pair]),
    ]
    budget = measured(bench.setting.yardsticks.token_budget)
    compared, differing, largest, worst = 0, 0, 0.0, ""
    for (what, actual, expected), groups in zip(runs, (exchanged, backwards), strict=True):
        comparison = compare_logps(actual, expected, groups)
        differences = [(a - e).abs() for a, e in zip(actual, expected, strict=True)]
        compared += comparison.num_compared
        differing += sum(int((~(d <= budget)).sum()) for d in differences)  # NaN never equals
        if not comparison.max <= largest:
            place, largest = comparison.worst[0], comparison.max
            worst = f"{what}: {place.where}: {place.actual:.9g} instead of {place.expected:.9g}"
    return Measured(
        num_compared=compared, num_differing=differing, worst=worst if differing else "", ratio=largest / budget
    )


PERMUTATION = ExactCheck(
    name="permutation",
    claims="With chosen and rejected exchanged, or groups in reverse order, log-probs are the same but for rounding.",
    cannot_see="A dependence that is the same in every order; losses; differences within the differential budget.",
    cases=("distinct-tokens",),
    measure=_measure,
)

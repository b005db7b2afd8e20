"""Branches and groups in another order have the same log-probs, but for rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import Tensor

from verify.cases import Case
from verify.checks.bench import Bench, Groups
from verify.checks.check import ExactCheck, Measured
from verify.checks.yardsticks import measured
from verify.comparison import compare_logps


@dataclass(frozen=True)
class _Order:
    """Another order of a case: its words, for each group the old places of its completions, and that of the groups."""

    words: str
    of_completions: tuple[tuple[int, ...], ...]
    num_positives: tuple[int, ...]
    of_groups: tuple[int, ...]

    def groups(self, groups: Groups) -> Groups:
        reordered = []
        for g in self.of_groups:
            completions = tuple(groups[g].completions[k] for k in self.of_completions[g])
            positives, negatives = completions[: self.num_positives[g]], completions[self.num_positives[g] :]
            reordered.append(replace(groups[g], positives=positives, negatives=negatives))
        return tuple(reordered)

    def logps(self, logps: Sequence[Tensor], groups: Groups) -> list[Tensor]:
        """Log-probs of the case as it was, in the new order."""
        first = [0, *accumulate(len(group.completions) for group in groups)]
        return [logps[first[g] + k] for g in self.of_groups for k in self.of_completions[g]]


def _orders(groups: Groups) -> list[_Order]:
    counts = [(len(group.positives), len(group.negatives)) for group in groups]
    as_it_was, forwards = tuple(m for m, _ in counts), tuple(range(len(groups)))
    if not all(group.is_pair for group in groups):
        reversed_sides = tuple((*range(m)[::-1], *range(m, m + n)[::-1]) for m, n in counts)
        words = "groups, and responses among the preferred and among the others, in reverse order"
        return [_Order(words, reversed_sides, as_it_was, forwards[::-1])]
    exchanged, given = ((1, 0),) * len(groups), ((0, 1),) * len(groups)
    return [
        _Order("chosen and rejected exchanged", exchanged, as_it_was, forwards),
        _Order("groups in reverse order", given, as_it_was, forwards[::-1]),
    ]


def _measure(bench: Bench, case: Case) -> Measured:
    before, budget = bench.logps(case.groups), measured(bench.setting.yardsticks.token_budgets.get(case.name))
    compared, differing, largest, worst = 0, 0, 0.0, ""
    for order in _orders(case.groups):
        groups = order.groups(case.groups)
        actual, expected = bench.logps(groups), order.logps(before, case.groups)
        comparison = compare_logps(actual, expected, groups)
        differences = [(a - e).abs() for a, e in zip(actual, expected, strict=True)]
        compared += comparison.num_compared
        differing += sum(int((~(d <= budget)).sum()) for d in differences)  # NaN never equals
        if not comparison.max <= largest:
            place, largest = comparison.worst[0], comparison.max
            worst = f"{order.words}: {place.where}: {place.actual:.9g} instead of {place.expected:.9g}"
    return Measured(
        num_compared=compared, num_differing=differing, worst=worst if differing else "", ratio=largest / budget
    )


PERMUTATION = ExactCheck(
    name="permutation",
    claims=(
        "With chosen and rejected exchanged, or groups in reverse order, log-probs are the same but for rounding; of "
        "larger groups with the preferred responses and the others each in reverse order."
    ),
    cannot_see="A dependence that is the same in every order; losses; differences within the differential budget.",
    cases=("distinct-tokens", "distinct-turns"),
    measure=_measure,
)

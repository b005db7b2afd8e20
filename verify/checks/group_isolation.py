"""No group sees another: rewriting one leaves every log-prob of the others as it was, to the last bit."""

from __future__ import annotations

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured
from verify.checks.places import TokenPlace
from verify.checks.rewriting import Rewriting, hold_against_rewritings


def _group(g: int) -> Rewriting:
    def is_in_group(place: TokenPlace) -> bool:
        return place.group == g

    return Rewriting(f"prompt and responses of group {g}", is_in_group)


def _measure(bench: Bench, case: Case) -> Measured:
    return hold_against_rewritings(bench, case, [_group(g) for g in range(len(case.groups))])


GROUP_ISOLATION = ExactCheck(
    name="group-isolation",
    claims=(
        "Rewriting prompt and responses of one group at equal lengths leaves the log-probs of all other groups "
        "bit-identical, for each of three groups in a batch; its own change."
    ),
    cannot_see="Dependence on lengths; anything where groups do not share a batch.",
    cases=("distinct-tokens",),
    measure=_measure,
)

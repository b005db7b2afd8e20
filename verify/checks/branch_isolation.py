"""No branch sees another: rewriting one leaves every log-prob of its siblings as it was, to the last bit."""

from __future__ import annotations

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured
from verify.checks.places import TokenPlace
from verify.checks.rewriting import Rewriting, hold_against_rewritings


def _measure(bench: Bench, case: Case) -> Measured:
    def is_in_branch(k: int, place: TokenPlace) -> bool:
        return place.completion == k

    return hold_against_rewritings(
        bench,
        case,
        [
            Rewriting("every chosen response", lambda place: is_in_branch(0, place)),
            Rewriting("every rejected response", lambda place: is_in_branch(1, place)),
        ],
    )


BRANCH_ISOLATION = ExactCheck(
    name="branch-isolation",
    claims=(
        "Rewriting the tokens of the chosen responses at equal lengths leaves the log-probs of all rejected ones "
        "bit-identical, and the other way round; the later log-probs of what was rewritten change."
    ),
    cannot_see="Dependence on lengths; of chosen on the chosen response of another group (group-isolation sees that).",
    cases=("distinct-tokens",),
    measure=_measure,
)

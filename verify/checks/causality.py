"""No token sees a later one: rewriting one leaves every earlier log-prob as it was, to the last bit."""

from __future__ import annotations

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured
from verify.checks.places import TokenPlace
from verify.checks.rewriting import Rewriting, hold_against_rewritings


def _measure(bench: Bench, case: Case) -> Measured:
    def length(place: TokenPlace) -> int:
        return len(case.groups[place.group].completions[place.completion or 0])

    def is_first_of_chosen(place: TokenPlace) -> bool:
        return place.completion == 0 and place.index == 0

    def is_middle(place: TokenPlace) -> bool:
        return place.completion is not None and place.index == length(place) // 2

    def is_last(place: TokenPlace) -> bool:
        return place.completion is not None and place.index == length(place) - 1

    return hold_against_rewritings(
        bench,
        case,
        [
            Rewriting("the first token of every chosen response", is_first_of_chosen),
            Rewriting("the middle token of every response", is_middle),
            Rewriting("the last token of every response", is_last),
        ],
    )


CAUSALITY = ExactCheck(
    name="causality",
    claims=(
        "Rewriting the first, middle or last token of responses leaves all log-probs before it bit-identical, and "
        "changes all behind it, whose own tokens stay."
    ),
    cannot_see="Which earlier tokens are seen, as long as some are (reach sees that); prompts.",
    cases=("distinct-tokens",),
    measure=_measure,
)

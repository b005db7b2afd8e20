"""No token sees a later one: rewriting one leaves every earlier log-prob as it was, to the last bit."""

from __future__ import annotations

from verify.cases import Case
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured
from verify.checks.of_rewards import hold_rewards_against_rewritings
from verify.checks.rewriting import Rewriting, hold_against_rewritings


def _measure(bench: Bench, case: Case) -> Measured:
    return hold_against_rewritings(bench, case, _rewritings(case))


def _of_rewards(bench: Bench, case: Case) -> Measured:
    return hold_rewards_against_rewritings(bench, case, _rewritings(case))


def _rewritings(case: Case) -> list[Rewriting]:
    every = [ids for group in case.groups for ids in group.completions]
    rewritings = [
        Rewriting("the middle token of every response", frozenset(ids[len(ids) // 2] for ids in every)),
        Rewriting("the last token of every response", frozenset(ids[-1] for ids in every)),
    ]
    if all(group.is_pair for group in case.groups):  # branch-isolation rewrites the turns that responses share
        first = frozenset(group.completions[0][0] for group in case.groups)
        rewritings.insert(0, Rewriting("the first token of every chosen response", first))
    return rewritings


CAUSALITY = ExactCheck(
    name="causality",
    claims=(
        "Rewriting the first (of pairs), middle or last token of responses leaves all log-probs before it "
        "bit-identical, and changes all behind it, whose own tokens stay. Of a reward model: it changes the rewards of "
        "these responses, the last token too, and no other."
    ),
    cannot_see="Which earlier tokens are seen, as long as some are (reach sees that); prompts.",
    cases=("distinct-tokens", "distinct-turns"),
    measure=_measure,
    of_rewards=_of_rewards,
)

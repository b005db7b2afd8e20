"""No branch sees another: rewriting one leaves every log-prob of its siblings as it was, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator

from verify.cases import Case
from verify.checks.bench import Bench, Groups
from verify.checks.check import ExactCheck, Measured
from verify.checks.of_rewards import hold_rewards_against_rewritings
from verify.checks.places import completion_words, holders
from verify.checks.rewriting import Rewriting, hold_against_rewritings


def _measure(bench: Bench, case: Case) -> Measured:
    return hold_against_rewritings(bench, case, _rewritings(case))


def _of_rewards(bench: Bench, case: Case) -> Measured:
    return hold_rewards_against_rewritings(bench, case, _rewritings(case))


def _rewritings(case: Case) -> list[Rewriting]:
    return [*_responses(case.groups), *_shared_turns(case.groups)]


def _responses(groups: Groups) -> Iterator[Rewriting]:
    """Responses 0 of every group, then responses 1, ...: of each what is in no other."""
    held_by, are_pairs = holders(groups), all(group.is_pair for group in groups)
    for k in range(max(len(group.completions) for group in groups)):
        own = frozenset(
            token
            for g, group in enumerate(groups)
            for token in (group.completions[k] if k < len(group.completions) else ())
            if held_by[token] == {(g, k)}
        )
        words = f"every {'rejected' if k else 'chosen'} response" if are_pairs else f"response {k} of every group"
        if own:
            yield Rewriting(words, own)


def _shared_turns(groups: Groups) -> Iterator[Rewriting]:
    """Each run of response tokens that several responses share, in all of them."""
    held_by = holders(groups)
    shared = {
        held_by[token]: None
        for group in groups
        for ids in group.completions
        for token in ids
        if len(held_by[token]) > 1
    }
    in_prompts = {token for group in groups for token in group.prompt_ids}
    for who in shared:
        turn = frozenset(token for token, of in held_by.items() if of == who) - in_prompts
        yield Rewriting(f"the turn of {' and '.join(completion_words(groups, g, k) for g, k in sorted(who))}", turn)


BRANCH_ISOLATION = ExactCheck(
    name="branch-isolation",
    claims=(
        "Rewriting the own tokens of one response of every group at equal lengths leaves the log-probs of all others "
        "bit-identical; the later log-probs of what was rewritten change. Rewriting a turn that several responses "
        "share, in all of them, changes what comes after it in each, and nothing else. Of a reward model: the rewards "
        "of all others are bit-identical, and those of what was rewritten change."
    ),
    cannot_see=(
        "Dependence on lengths; on the response of the same number in another group (group-isolation sees that); "
        "whether what is shared is computed once."
    ),
    cases=("distinct-tokens", "distinct-turns"),
    measure=_measure,
    of_rewards=_of_rewards,
)

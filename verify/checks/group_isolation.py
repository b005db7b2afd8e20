"""No group sees another: rewriting one leaves every log-prob of the others, policy and reference, as it was."""

from __future__ import annotations

from dataclasses import replace

from verify.cases import Case
from verify.checks.bench import Bench, Groups
from verify.checks.check import ExactCheck, Measured
from verify.checks.of_rewards import hold_rewards_against_rewritings
from verify.checks.places import holders
from verify.checks.reference import computes_reference, hold_reference_against_rewriting
from verify.checks.rewriting import Rewriting, hold_against_rewritings


def _measure(bench: Bench, case: Case) -> Measured:
    rewritings = [_group(case.groups, g) for g in range(len(case.groups))]
    policy = hold_against_rewritings(bench, case, rewritings)
    if policy.num_differing or not computes_reference(bench):
        return policy
    reference = hold_reference_against_rewriting(bench, case, _prompt_and_responses_of_another(case.groups))
    return replace(reference, num_compared=policy.num_compared + reference.num_compared)


def _of_rewards(bench: Bench, case: Case) -> Measured:
    return hold_rewards_against_rewritings(bench, case, [_group(case.groups, g) for g in range(len(case.groups))])


def _group(groups: Groups, g: int) -> Rewriting:
    """All tokens of a group but those with which prompts of other groups begin as well."""
    own = frozenset(token for token, who in holders(groups).items() if {group for group, _ in who} == {g})
    return Rewriting(f"prompt and responses of group {g}", own)


def _prompt_and_responses_of_another(groups: Groups) -> Rewriting:
    """A prompt whose responses stay, and responses whose prompt stays: what is kept by either alone is stale."""
    own = len(groups) // 2
    tokens = {*groups[own].prompt_ids, *(token for ids in groups[own + 1].completions for token in ids)}
    return Rewriting(f"the prompt of group {own} and the responses of group {own + 1}", frozenset(tokens))


GROUP_ISOLATION = ExactCheck(
    name="group-isolation",
    claims=(
        "Rewriting prompt and responses of one group at equal lengths leaves the log-probs of all other groups "
        "bit-identical, for each of three groups in a batch; its own change. The same holds for the reference "
        "log-probs when the prompt of one group and the responses of another are rewritten: none is left over from "
        "other tokens of the same lengths. "
        "Where a loss returns rewards alone, the sums that follow from them equal those of the unpacked reference on "
        "the rewritten tokens but for rounding. The rewards of a reward model change and keep their bits alike."
    ),
    cannot_see=(
        "Dependence on lengths; anything where groups do not share a batch; log-probs kept by token ids, which "
        "go stale only with other weights; what rounding hides where a loss returns rewards alone."
    ),
    cases=("distinct-tokens",),
    measure=_measure,
    of_rewards=_of_rewards,
)

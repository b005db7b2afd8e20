"""Rewriting tokens at equal lengths: what depends on them must change, everything else must keep its bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from verify.cases import Case
from verify.checks.bench import Bench, Groups, flat
from verify.checks.cases import rewrite
from verify.checks.check import Measured
from verify.checks.places import ids_before, supervised_tokens


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Which tokens of a case become others.

    Args:
        words: What they are, e.g. "the last token of every completion".
        token_ids: Their ids. A token that several paths share is rewritten in all of them.
    """

    words: str
    token_ids: frozenset[int]


def hold_against_rewritings(
    bench: Bench, case: Case, rewritings: Sequence[Rewriting], run: Callable[[Groups], Tensor] | None = None
) -> Measured:
    """Run a case as it is and with each rewriting.

    A log-prob depends on the tokens before its own on its path, and on its own token. Where one of those before was
    rewritten it must have changed: a subject that ignores its input would keep every bit. Where neither those before
    nor its own were, every bit must be the same. Where only its own was, it may be anything.

    Args:
        bench: The subject and its model.
        case: A case of distinct tokens.
        rewritings: What to rewrite, each in a pass of its own; what no token of the case is changes nothing.
        run: Gives all log-probs of groups as one vector; those of the policy by default.

    Returns:
        The violations of the first rewriting that shows any, or none.
    """
    run = run or (lambda groups: flat(bench.logps(groups)))
    before = run(case.groups)
    other_token = bench.setting.cases.other_token[case.name]
    tokens = [(place, token, ids_before(case.groups, place)) for place, token in supervised_tokens(case.groups)]
    compared, violations = 0, list[str]()
    for rewriting in rewritings:
        if violations:
            break
        after = run(rewrite(case.groups, other_token, rewriting.token_ids))
        changed = (before != after).tolist()  # NaN never equals
        for (place, token, seen), has_changed in zip(tokens, changed, strict=True):
            must_change = not seen.isdisjoint(rewriting.token_ids)
            if not must_change and token in rewriting.token_ids:
                continue
            compared += 1
            if has_changed != must_change:
                how = "kept its bits, though it sees them" if must_change else "changed, though it sees none of them"
                violations.append(f"rewriting {rewriting.words}: {place.words(case.groups)} {how}")
    return Measured(
        num_compared=compared,
        num_differing=len(violations),
        worst=violations[0] if violations else "",
        ratio=math.inf if violations else 0.0,
    )

"""Rewriting tokens at equal lengths: what depends on them must change, everything else must keep its bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from verify.cases import Case
from verify.checks.bench import Bench, Groups, flat
from verify.checks.check import Measured
from verify.checks.places import TokenPlace, all_places, completion_places
from verify.groups import PreferenceGroup, TokenIds


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Which tokens of a case become others.

    Args:
        words: What they are, e.g. "the last token of every completion".
        chosen: Whether a token is one of them.
    """

    words: str
    chosen: Callable[[TokenPlace], bool]


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
        rewritings: What to rewrite, each in a pass of its own.
        run: Gives all log-probs of groups as one vector; those of the policy by default.

    Returns:
        The violations of the first rewriting that shows any, or none.
    """
    run = run or (lambda groups: flat(bench.logps(groups)))
    before = run(case.groups)
    tokens = completion_places(case.groups)
    compared, violations = 0, list[str]()
    for rewriting in rewritings:
        if violations:
            break
        rewritten = [place for place, _ in all_places(case.groups) if rewriting.chosen(place)]
        after = run(rewrite(case.groups, bench.setting.cases.other_token, rewriting.chosen))
        changed = (before != after).tolist()  # NaN never equals
        for token, has_changed in zip(tokens, changed, strict=True):
            must_change = any(place.is_on_path_before(token) for place in rewritten)
            if not must_change and token in rewritten:
                continue
            compared += 1
            if has_changed != must_change:
                how = "kept its bits, though it sees them" if must_change else "changed, though it sees none of them"
                violations.append(f"rewriting {rewriting.words}: {token.words(case.groups)} {how}")
    return Measured(
        num_compared=compared,
        num_differing=len(violations),
        worst=violations[0] if violations else "",
        ratio=math.inf if violations else 0.0,
    )


def rewrite(
    groups: Sequence[PreferenceGroup], other_token: Mapping[int, int], chosen: Callable[[TokenPlace], bool]
) -> Groups:
    """Groups of the same lengths with some tokens exchanged.

    Args:
        groups: The groups.
        other_token: What a token becomes.
        chosen: Whether the token at a place is exchanged.

    Returns:
        New groups.
    """

    def edited(g: int, part: int | None, ids: TokenIds) -> TokenIds:
        return tuple(other_token[t] if chosen(TokenPlace(g, part, i)) else t for i, t in enumerate(ids))

    rewritten = []
    for g, group in enumerate(groups):
        completions = tuple(edited(g, k, ids) for k, ids in enumerate(group.completions))
        num_positives = len(group.positives)
        rewritten.append(
            replace(
                group,
                prompt_ids=edited(g, None, group.prompt_ids),
                positives=completions[:num_positives],
                negatives=completions[num_positives:],
            )
        )
    return tuple(rewritten)

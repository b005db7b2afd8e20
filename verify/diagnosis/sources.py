"""Where a wrong log-prob comes from: another predictor, another token's place, or another label.

With right hidden states every log-prob that a subject can read is log softmax(logits at a slot)[an id]. The unpacked
path gives all of them; a wrong value that equals one of them says which slot and id were taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from verify.diagnosis.tokens import CaseToken, completion_tokens, sequences
from verify.groups import PreferenceGroup

Kind = Literal["other predictor", "other place", "other label"]
_EXPLAINED = 0.75


@dataclass(frozen=True, slots=True)
class Source:
    """One wrong value explained: token ``index`` of a completion got what belongs to ``found``."""

    token: CaseToken
    kind: Kind
    found: CaseToken | None


@dataclass(frozen=True, slots=True)
class Sources:
    """The kind that explains most of the wrong values, and those values; empty where none does."""

    kind: Kind | None
    found: tuple[Source, ...]
    num_wrong: int


def find_sources(
    logps: Sequence[Tensor],
    beyond: Sequence[Tensor],
    logits: Mapping[int, Tensor],
    tokens: Mapping[int, CaseToken],
    groups: Sequence[PreferenceGroup],
    tolerance: float,
) -> Sources:
    """Search.

    Args:
        logps: What the subject reported of supervised tokens, one vector per completion.
        beyond: Which of them are wrong.
        logits: Tracked token id to the unpacked path's logits at its slot, float64 [V].
        tokens: Tracked tokens by id.
        groups: The groups of the case.
        tolerance: How near a value must be; that of a log-prob's budget.

    Returns:
        The explanation that fits at least three quarters of the wrong values that could be looked at.
    """
    table = {token: torch.log_softmax(values, -1) for token, values in logits.items()}
    right = _right_values(table, groups)
    votes: Counter[Kind] = Counter()
    sources: list[Source] = []
    num_wrong = 0
    for (place, predictor, label), actual in _wrong(logps, beyond, groups):
        num_wrong += 1
        explanations: list[Source] = []
        for kind, found in (
            (
                "other predictor",
                _nearest({s: row[label] for s, row in table.items() if s != predictor}, actual, tolerance),
            ),
            ("other place", _nearest(right, actual, tolerance)),
        ):
            if found is not None:
                explanations.append(Source(place, kind, tokens.get(found)))  # type: ignore[arg-type]
        if predictor in table and bool(((table[predictor] - actual).abs() <= tolerance).any()):
            explanations.append(Source(place, "other label", None))
        votes.update({source.kind for source in explanations})
        sources += explanations
    order: tuple[Kind, ...] = ("other place", "other predictor", "other label")
    best = max(order, key=lambda kind: votes[kind])
    if num_wrong == 0 or votes[best] < max(1, _EXPLAINED * num_wrong):
        return Sources(None, (), num_wrong)
    return Sources(best, tuple(source for source in sources if source.kind == best), num_wrong)


def _wrong(
    logps: Sequence[Tensor], beyond: Sequence[Tensor], groups: Sequence[PreferenceGroup]
) -> list[tuple[tuple[CaseToken, int, int], float]]:
    """Wrong values: the token, the id of its predictor, its own id, and the value."""
    wrong = []
    parts = zip(sequences(groups), completion_tokens(groups), logps, beyond, strict=True)
    for (g, c, ids), tokens, values, is_wrong in parts:
        places = groups[g].supervised[c]
        for n in is_wrong.nonzero()[:, 0].tolist():
            token = tokens[places[n]]
            wrong.append(((token, ids[token.path - 1], ids[token.path]), float(values[n])))
    return wrong


def _right_values(table: Mapping[int, Tensor], groups: Sequence[PreferenceGroup]) -> dict[int, Tensor]:
    """Token id to its right log-prob, for tokens whose predictor is tracked."""
    values = {}
    for group in groups:
        for ids in group.completions:
            for predictor, label in zip((group.prompt_ids[-1], *ids[:-1]), ids, strict=True):
                if predictor in table:
                    values[label] = table[predictor][label]
    return values


def _nearest(values: Mapping[int, Tensor], actual: float, tolerance: float) -> int | None:
    """The key whose value is nearest, if within the tolerance."""
    if not values:
        return None
    keys = list(values)
    distance = (torch.stack([values[key] for key in keys]) - actual).abs()
    nearest = int(distance.argmin())
    return keys[nearest] if float(distance[nearest]) <= tolerance else None


def responses_exchanged(sources: Sources) -> bool:
    """Whether most values are those of another response of the same group."""
    pairs = [(s.token, s.found) for s in sources.found if s.found is not None]
    exchanged = [1 for token, found in pairs if found.group == token.group and found.completion != token.completion]
    return len(exchanged) > len(pairs) / 2

"""Slots matched to tokens by id, and how far each token's hidden states are from those of the unpacked path.

Shape letters: M slots that hold a tracked token, N tracked tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.diagnosis.flow import ForwardCall
from verify.diagnosis.tokens import CaseToken
from verify.groups import PreferenceGroup

Tokens = Mapping[int, CaseToken]


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """Vectors of tracked tokens at one place; a token that was fed several times has several.

    Args:
        ids: Token ids, int64 [M].
        vectors: float64, [M, D].
    """

    ids: Tensor
    vectors: Tensor

    def first_copies(self) -> TokenVectors:
        """One vector for each token, that of its first copy; ids in ascending order."""
        ids, inverse = torch.unique(self.ids, return_inverse=True)
        first = torch.full((len(ids),), len(self.ids)).scatter_reduce(
            0, inverse, torch.arange(len(self.ids)), reduce="amin"
        )
        return TokenVectors(ids, self.vectors[first])

    def summed_copies(self) -> TokenVectors:
        """One vector for each token, the sum over its copies; ids in ascending order."""
        ids, inverse = torch.unique(self.ids, return_inverse=True)
        sums = torch.zeros(len(ids), self.vectors.shape[-1], dtype=self.vectors.dtype)
        return TokenVectors(ids, sums.index_add(0, inverse, self.vectors))


def tracked_slots(call: ForwardCall, tokens: Tokens) -> Tensor:
    """Which slots of a pass hold a tracked token; bool [B, T].

    A run of equal ids is padding: an id that occurs once in the case never has itself for a neighbour.

    Args:
        call: The pass.
        tokens: Tracked tokens by id.
    """
    ids = call.input_ids
    tracked = torch.isin(ids, torch.tensor(sorted(tokens), dtype=torch.int64))
    same = ids[:, 1:] == ids[:, :-1]
    tracked[:, 1:] &= ~same
    tracked[:, :-1] &= ~same
    return tracked


def hidden_states(calls: Sequence[ForwardCall], tokens: Tokens, place: str) -> TokenVectors | None:
    """Hidden states of all tracked tokens at one place.

    Args:
        calls: The recorded passes.
        tokens: Tracked tokens by id.
        place: Name of the place.

    Returns:
        All copies, or None where nothing was recorded.
    """
    return _collect(((call, call.hidden.get(place)) for call in calls), tokens)


def hidden_gradients(calls: Sequence[ForwardCall], tokens: Tokens, place: str) -> TokenVectors | None:
    """Gradients of all tracked tokens at one place; arguments and result as :func:`hidden_states`."""
    return _collect(((call, call.gradients.get(place)) for call in calls), tokens)


def _collect(values: Iterable[tuple[ForwardCall, Tensor | None]], tokens: Tokens) -> TokenVectors | None:
    ids, vectors = [], []
    for call, of_call in values:
        if of_call is None:
            continue
        tracked = tracked_slots(call, tokens)
        ids.append(call.input_ids[tracked])
        vectors.append(of_call.cpu()[tracked].double())
    if not ids or not sum(map(len, ids)):
        return None
    return TokenVectors(torch.cat(ids), torch.cat(vectors))


def state_distances(actual: TokenVectors, expected: TokenVectors) -> dict[int, float]:
    """Relative distance of each token's hidden state, the largest over its copies; infinite for NaN.

    Args:
        actual: All copies of each token.
        expected: The same of the unpacked path, whose copies agree.

    Returns:
        Token id to distance, for tokens on both sides.
    """
    right = expected.first_copies()
    known = torch.isin(actual.ids, right.ids)
    ids, vectors = actual.ids[known], right.vectors[torch.searchsorted(right.ids, actual.ids[known])]
    distances = _ratio((actual.vectors[known] - vectors).norm(dim=-1), vectors.norm(dim=-1))
    largest: dict[int, float] = {}
    for token, distance in zip(ids.tolist(), distances.tolist(), strict=True):
        largest[token] = max(largest.get(token, 0.0), distance)
    return largest


def gradient_distances(actual: TokenVectors, expected: TokenVectors) -> dict[int, float]:
    """Distance of each token's gradient over the RMS norm of all tokens' gradients.

    Gradients of copies are summed: a shared prompt has one where unpacked rows have several.

    Args:
        actual: All copies of each token.
        expected: The same of the unpacked path.

    Returns:
        Token id to distance, for tokens on both sides.
    """
    ours, right = actual.summed_copies(), expected.summed_copies()
    known = torch.isin(ours.ids, right.ids)
    ids, vectors = ours.ids[known], right.vectors[torch.searchsorted(right.ids, ours.ids[known])]
    if not len(ids):
        return {}
    size = vectors.square().sum(-1).mean().sqrt()
    distances = _ratio((ours.vectors[known] - vectors).norm(dim=-1), size.expand(len(ids)))
    return dict(zip(ids.tolist(), distances.tolist(), strict=True))


def _ratio(difference: Tensor, size: Tensor) -> Tensor:
    """Difference over size: infinite where it is not a number, 0 where both are 0."""
    ratio = torch.nan_to_num(difference / size, nan=math.inf, posinf=math.inf)
    return torch.where(difference == 0, torch.zeros_like(ratio), ratio)


def foreign_gradient(calls: Sequence[ForwardCall], groups: Sequence[PreferenceGroup]) -> float:
    """Largest gradient of a hidden state at a slot that holds no token of the case: honestly 0.

    Args:
        calls: The recorded passes.
        groups: The groups of the case.

    Returns:
        The largest absolute value, 0 where there is no such slot; infinite for NaN.
    """
    known = torch.tensor(sorted({t for g in groups for part in (g.prompt_ids, *g.completions) for t in part}))
    largest = 0.0
    for call in calls:
        foreign = ~torch.isin(call.input_ids, known)
        for values in call.gradients.values():
            at_foreign = values.cpu()[foreign]
            if at_foreign.numel():
                size = float(at_foreign.abs().max())
                largest = max(largest, size if math.isfinite(size) else math.inf)
    return largest

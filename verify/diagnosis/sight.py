"""Which token attends to which, and at which positions: measured on the subject, whatever mask or kernel it has.

What attention returns is linear in the values, with the attention weights as coefficients. A key is seen by a query
where the derivative of the first layer's attention at the query with respect to the value at the key is not exactly
zero; masked keys have weights of exactly zero.

Shape letters: B rows, T slots, D width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verify.diagnosis.alignment import Tokens, tracked_slots
from verify.diagnosis.flow import Decoder, ForwardCall
from verify.groups import PreferenceGroup

NOT_OF_THE_CASE = -1
"""Stands for the id of any slot that holds no token of the case."""
MAX_SLOTS = 600
"""Rows longer than this are left out: one backward pass is needed for each slot."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of the first layer in one pass.

    Args:
        call: Number of the pass.
        values: Output of the value projection, a leaf of the graph.
        output: What attention returned.
    """

    call: int
    values: Tensor
    output: Tensor


@contextmanager
def record_attention(decoder: Decoder, calls: Sequence[ForwardCall]) -> Iterator[list[Attention]]:
    """Keep values and output of the first layer's attention of each pass that is recorded in ``calls``.

    Args:
        decoder: The decoder.
        calls: Passes, recorded at the same time by ``record_flow``, which must be entered first.

    Yields:
        Filled as passes run; stays empty where the layer has no value projection of its own.
    """
    kept: list[Attention] = []
    leaf: list[Tensor] = []

    def cut(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        leaf.clear()
        if not calls or not torch.is_grad_enabled() or not isinstance(output, Tensor):
            return output
        leaf.append(output.detach().requires_grad_())
        return leaf[0]

    def leave(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if leaf and isinstance(first, Tensor) and first.shape[:-1] == calls[-1].input_ids.shape:
            kept.append(Attention(len(calls) - 1, leaf[0], first))

    attention = decoder.layers[0].self_attn
    projection = getattr(attention, "v_proj", None)
    if not isinstance(attention, nn.Module) or not isinstance(projection, nn.Module):
        yield kept
        return
    hooks = (projection.register_forward_hook(cut), attention.register_forward_hook(leave))
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()


def seen_keys(attention: Attention) -> Tensor | None:
    """Which slot sees which; bool [B, T query, T key], or None where the graph does not reach the values or is NaN."""
    output, leaf = attention.output, attention.values
    if not output.requires_grad or output.shape[1] > MAX_SLOTS:
        return None
    direction = torch.randn(output.shape[-1], generator=torch.Generator().manual_seed(0)).to(output)
    seen = []
    for query in range(output.shape[1]):
        along = (output[:, query] * direction).sum()
        (gradient,) = torch.autograd.grad(along, leaf, retain_graph=True, allow_unused=True)
        if gradient is None or not bool(torch.isfinite(gradient).all()):
            return None
        seen.append((gradient != 0).any(-1))
    return torch.stack(seen, dim=1).cpu()


@dataclass(frozen=True, slots=True)
class Sight:
    """What tokens see and where they stand, beside what they should.

    Args:
        num_queries: Queries looked at; 0 where visibility could not be measured.
        foreign: Query id to ids of keys it sees and should not; NOT_OF_THE_CASE for a slot without a token of the case.
        hidden: Query id to ids of keys it should see and does not.
        misplaced: Token id to its position minus the right one, relative to its prompt.
        never_fed: Tokens of the case that passed no embedding, but for those that predict nothing.
        num_positions: Tokens whose position was looked at; 0 where the model was not seen to get positions.
        positions_fit_sight: Every misplaced token stands behind as many tokens as it sees: one wrong path, not two.
    """

    num_queries: int
    foreign: dict[int, tuple[int, ...]]
    hidden: dict[int, tuple[int, ...]]
    misplaced: dict[int, float]
    never_fed: tuple[int, ...]
    num_positions: int
    positions_fit_sight: bool


def look(
    calls: Sequence[ForwardCall], attentions: Sequence[Attention], tokens: Tokens, groups: Sequence[PreferenceGroup]
) -> Sight:
    """Compare what was seen with what should be.

    Args:
        calls: Passes of the policy.
        attentions: Of the same passes; those without are not looked at for visibility.
        tokens: Tracked tokens by id.
        groups: The groups of the case.

    Returns:
        The sight.
    """
    case_ids = {t for group in groups for part in (group.prompt_ids, *group.completions) for t in part}
    seen_by_call = {attention.call: seen_keys(attention) for attention in attentions}
    rows = _rows(calls, seen_by_call, tokens)
    foreign: dict[int, set[int]] = {}
    hidden: dict[int, set[int]] = {}
    misplaced: dict[int, float] = {}
    fits = True
    for row in rows:
        for query, wrong, missing in row.wrong_keys(tokens, case_ids):
            foreign.setdefault(query, set()).update(wrong)
            hidden.setdefault(query, set()).update(missing)
        for token, off, as_seen in row.wrong_positions(tokens):
            misplaced[token] = off
            fits = fits and as_seen
    fed = {token for row in rows for token in row.ids.values()}
    last = {ids[-1] for group in groups for ids in group.completions}
    return Sight(
        num_queries=sum(len(row.ids) for row in rows if row.seen is not None),
        foreign={token: tuple(sorted(keys)) for token, keys in foreign.items() if keys},
        hidden={token: tuple(sorted(keys)) for token, keys in hidden.items() if keys},
        misplaced=misplaced,
        never_fed=tuple(token for token in tokens if token not in fed | last),
        num_positions=sum(len(row.ids) for row in rows if row.positions is not None),
        positions_fit_sight=fits and bool(misplaced),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of one pass: ids of all slots, tracked ids by slot, what each slot sees, and positions."""

    all_ids: list[int]
    ids: dict[int, int]
    seen: Tensor | None
    positions: Tensor | None

    def wrong_keys(self, tokens: Tokens, case_ids: set[int]) -> Iterator[tuple[int, set[int], set[int]]]:
        """Queries with the keys they see and should not, and those they should see and do not."""
        if self.seen is None:
            return
        for slot, query in self.ids.items():
            keys = set()
            for key in self.seen[slot].nonzero()[:, 0].tolist():
                if key in self.ids:
                    keys.add(self.ids[key])
                elif self.all_ids[key] not in case_ids:
                    keys.add(NOT_OF_THE_CASE)
            may = {key for key in self.ids.values() if tokens[query].sees(tokens[key])}
            yield query, keys - may, may - keys

    def wrong_positions(self, tokens: Tokens) -> Iterator[tuple[int, float, bool]]:
        """Tokens at wrong positions, by how much, and whether that is the number of tokens they see before them."""
        if self.positions is None:
            return
        offsets = {slot: float(self.positions[slot]) - tokens[token].path for slot, token in self.ids.items()}
        starts = self._starts(offsets, tokens)
        for slot, token in self.ids.items():
            start = starts[tokens[token].group]
            if offsets[slot] != start:
                yield token, offsets[slot] - start, self._stands_as_it_sees(slot)

    def _stands_as_it_sees(self, slot: int) -> bool:
        """Whether as many tokens stand before a slot as it sees: then positions and mask follow one wrong path."""
        if self.seen is None or self.positions is None or not bool(self.seen[slot].any()):
            return False
        first = int(self.seen[slot].nonzero()[0])
        return float(self.positions[slot] - self.positions[first]) == int(self.seen[slot].sum()) - 1

    def _starts(self, offsets: dict[int, float], tokens: Tokens) -> dict[int, float]:
        """Where each group's positions start from: the commonest offset of its prompt, or of any token without one."""
        of_prompt: dict[int, Counter[float]] = {}
        of_any: dict[int, Counter[float]] = {}
        for slot, token in self.ids.items():
            place = tokens[token]
            of_any.setdefault(place.group, Counter())[offsets[slot]] += 1
            if place.completion is None:
                of_prompt.setdefault(place.group, Counter())[offsets[slot]] += 1
        return {group: counter.most_common(1)[0][0] for group, counter in {**of_any, **of_prompt}.items()}


def _rows(calls: Sequence[ForwardCall], seen: dict[int, Tensor | None], tokens: Tokens) -> list[_Row]:
    rows = []
    for c, call in enumerate(calls):
        of_call, tracked = seen.get(c), tracked_slots(call, tokens)
        for r, all_ids in enumerate(call.input_ids.tolist()):
            rows.append(
                _Row(
                    all_ids=all_ids,
                    ids={slot: all_ids[slot] for slot in tracked[r].nonzero()[:, 0].tolist()},
                    seen=None if of_call is None else of_call[r],
                    positions=None if call.positions is None else call.positions[r],
                )
            )
    return rows

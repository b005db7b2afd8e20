"""Which token attends to which, and at which positions: measured on the subject, whatever mask or kernel it has.

What attention returns is a sum of values, with the attention weights as coefficients. In the first layer the values are
replaced by ones and zeros, a one of its own for each key: what comes out is the weights themselves. With two heads of
width 2 for keys and values, four keys fit into one pass:

    values of slots 0, 1, 2, 3     10|00   01|00   00|10   00|01
    what a query sees of them      slot 0, slot 1 in the heads that share the first, slots 2 and 3 in the others

Masked keys have weights of exactly zero.

Shape letters: B rows, T slots, K heads of keys and values, N heads of queries, H width of a head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verify.diagnosis.alignment import Tokens, tracked_slots
from verify.diagnosis.flow import Decoder, ForwardCall
from verify.diagnosis.tokens import path_ids
from verify.groups import PreferenceGroup

NOT_OF_THE_CASE = -1
"""Stands for the id of any slot that holds no token of the case."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The first attention layer, and how many keys one pass can tell apart.

    Args:
        values: Its value projection.
        output: Its output projection, whose input is what attention returned.
        num_kv_heads: K.
        head_dim: H.
    """

    values: nn.Module
    output: nn.Module
    num_kv_heads: int
    head_dim: int

    @property
    def keys_per_pass(self) -> int:
        """K H."""
        return self.num_kv_heads * self.head_dim

    @staticmethod
    def of(decoder: Decoder, config: Any) -> Probe | None:
        """The probe of a decoder, or None where its layers have no projections of their own."""
        attention = decoder.layers[0].self_attn
        values, output = getattr(attention, "v_proj", None), getattr(attention, "o_proj", None)
        heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
        width = getattr(values, "out_features", None)
        if not isinstance(values, nn.Module) or not isinstance(output, nn.Module):
            return None
        if not isinstance(heads, int) or not isinstance(width, int) or width % heads:
            return None
        return Probe(values, output, heads, width // heads)


@contextmanager
def probing(probe: Probe | None, calls: Sequence[ForwardCall], first_key: int) -> Iterator[dict[int, Tensor]]:
    """Replace values while the context is open.

    Args:
        probe: The layer; None where there is none to probe, so that nothing is replaced.
        calls: Passes, recorded at the same time by ``record_flow``, which must be entered first.
        first_key: The first slot whose sight is asked for; as many follow as a pass can tell apart.

    Yields:
        Number of the pass to which slot sees which of these keys; bool, [B, T query, keys]. Filled as passes run;
        where something is not finite, an entry is missing.
    """
    seen: dict[int, Tensor] = {}
    if probe is None:
        yield seen
        return

    def replace(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, Tensor) or output.ndim != 3:
            return output
        ones = torch.zeros_like(output)
        for number, slot in enumerate(range(first_key, min(first_key + probe.keys_per_pass, output.shape[1]))):
            ones[:, slot, number] = 1
        return ones

    def read(_module: nn.Module, args: tuple[Any, ...]) -> None:
        heads_BTD = args[0] if args else None  # noqa: N806
        if not calls or not isinstance(heads_BTD, Tensor) or heads_BTD.shape[:-1] != calls[-1].input_ids.shape:
            return
        weights = heads_BTD.detach().reshape(*heads_BTD.shape[:-1], probe.num_kv_heads, -1, probe.head_dim)
        if bool(torch.isfinite(weights).all()):
            seen[len(calls) - 1] = (weights != 0).any(dim=-2).flatten(-2).cpu()

    hooks = (probe.values.register_forward_hook(replace), probe.output.register_forward_pre_hook(read))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True, slots=True)
class Sight:
    """What tokens see and where they stand, beside what they should.

    Args:
        num_queries: Queries looked at; 0 where visibility could not be measured.
        foreign: Query id to ids of keys it sees and should not, or sees twice; NOT_OF_THE_CASE for a slot that holds no
            token of the case.
        hidden: Query id to ids of keys it should see and does not.
        misplaced: Token id to its position minus the right one, relative to its prompt.
        never_fed: Tokens of the case that passed no embedding, but for those that no supervised token stands behind.
        num_positions: Tokens whose position was looked at; 0 where the model was not seen to get positions.
        positions_fit_sight: Every misplaced token stands behind as many tokens as it sees: one wrong path, not two.
        out_of_window: Every foreign key stands on its query's path, where the unpacked path does not see it.
    """

    num_queries: int
    foreign: dict[int, tuple[int, ...]]
    hidden: dict[int, tuple[int, ...]]
    misplaced: dict[int, float]
    never_fed: tuple[int, ...]
    num_positions: int
    positions_fit_sight: bool
    out_of_window: bool = False


def keys_seen(calls: Sequence[ForwardCall], seen_by_call: Mapping[int, Tensor], tokens: Tokens) -> dict[int, set[int]]:
    """Which tracked tokens a query sees, in any of its copies; all by id. Arguments are those of :func:`look`."""
    keys: dict[int, set[int]] = {}
    for row in _rows(calls, seen_by_call, tokens):
        for slot, query in row.ids.items() if row.seen is not None else ():
            seen = set(row.seen[slot].nonzero()[:, 0].tolist()) if row.seen is not None else set()
            keys.setdefault(query, set()).update(row.ids[key] for key in seen & row.ids.keys())
    return keys


def look(
    calls: Sequence[ForwardCall],
    seen_by_call: Mapping[int, Tensor],
    tokens: Tokens,
    groups: Sequence[PreferenceGroup],
    seen_unpacked: Mapping[int, set[int]],
) -> Sight:
    """Compare what was seen with what should be.

    Args:
        calls: Passes of the policy.
        seen_by_call: Number of a pass to which slot sees which, bool [B, T query, T key]; passes without are not
            looked at for visibility.
        tokens: Tracked tokens by id.
        groups: The groups of the case.
        seen_unpacked: What a query sees of its path on the unpacked path, which is less than all of it under a sliding
            window; a query that is not in it sees all.

    Returns:
        The sight.
    """
    case_ids = {t for group in groups for part in (group.prompt_ids, *group.completions) for t in part}
    rows = _rows(calls, seen_by_call, tokens)
    foreign: dict[int, set[int]] = {}
    hidden: dict[int, set[int]] = {}
    misplaced: dict[int, float] = {}
    fits = True
    for row in rows:
        for query, wrong, missing in row.wrong_keys(tokens, case_ids, groups, seen_unpacked):
            foreign.setdefault(query, set()).update(wrong)
            hidden.setdefault(query, set()).update(missing)
        for token, off, as_seen in row.wrong_positions(tokens, groups):
            misplaced[token] = off
            fits = fits and as_seen
    fed = {token for row in rows for token in row.ids.values()}
    needed = _needed(groups)
    return Sight(
        num_queries=sum(len(row.ids) for row in rows if row.seen is not None),
        foreign={token: tuple(sorted(keys)) for token, keys in foreign.items() if keys},
        hidden={token: tuple(sorted(keys)) for token, keys in hidden.items() if keys},
        misplaced=misplaced,
        never_fed=tuple(token for token in tokens if token in needed - fed),
        num_positions=sum(len(row.ids) for row in rows if row.positions is not None),
        positions_fit_sight=fits and bool(misplaced),
        out_of_window=any(foreign.values())
        and all(
            keys <= set(path_ids(tokens[query], groups)) - seen_unpacked.get(query, keys)
            for query, keys in foreign.items()
        ),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of one pass: ids of all slots, tracked ids by slot, what each slot sees, and positions."""

    all_ids: list[int]
    ids: dict[int, int]
    seen: Tensor | None
    positions: Tensor | None

    def wrong_keys(
        self,
        tokens: Tokens,
        case_ids: set[int],
        groups: Sequence[PreferenceGroup],
        seen_unpacked: Mapping[int, set[int]],
    ) -> Iterator[tuple[int, set[int], set[int]]]:
        """Queries with the keys they see and should not, and those they should see and do not."""
        if self.seen is None:
            return
        here = set(self.ids.values())
        for slot, query in self.ids.items():
            keys: Counter[int] = Counter()
            for key in self.seen[slot].nonzero()[:, 0].tolist():
                if key in self.ids:
                    keys[self.ids[key]] += 1
                elif self.all_ids[key] not in case_ids:
                    keys[NOT_OF_THE_CASE] += 1
            path = path_ids(tokens[query], groups)
            may = here.intersection(path, seen_unpacked.get(query, path))
            # A prompt that stands in the row once for each of two groups must not be seen twice.
            yield query, {key for key, count in keys.items() if key not in may or count > 1}, may - keys.keys()

    def wrong_positions(self, tokens: Tokens, groups: Sequence[PreferenceGroup]) -> Iterator[tuple[int, float, bool]]:
        """Tokens at wrong positions, by how much, and whether that is the number of tokens they see before them."""
        if self.positions is None:
            return
        offsets = {slot: float(self.positions[slot]) - tokens[token].path for slot, token in self.ids.items()}
        trees = self._trees(tokens, groups)
        starts = self._starts(offsets, tokens, trees)
        for slot, token in self.ids.items():
            start = starts[trees[token]]
            if offsets[slot] != start:
                yield token, offsets[slot] - start, self._stands_as_it_sees(slot)

    def _trees(self, tokens: Tokens, groups: Sequence[PreferenceGroup]) -> dict[int, tuple[str, int]]:
        """What a token's position counts from: its root, or its group's where the row has that root twice."""
        num_slots = Counter(self.ids.values())
        roots = {token: groups[tokens[token].group].prompt_ids[0] for token in num_slots}
        return {
            token: ("root", root) if num_slots[root] == 1 else ("group", tokens[token].group)
            for token, root in roots.items()
        }

    def _stands_as_it_sees(self, slot: int) -> bool:
        """Whether as many tokens stand before a slot as it sees: then positions and mask follow one wrong path."""
        if self.seen is None or self.positions is None or not bool(self.seen[slot].any()):
            return False
        first = int(self.seen[slot].nonzero()[0])
        return float(self.positions[slot] - self.positions[first]) == int(self.seen[slot].sum()) - 1

    def _starts(
        self, offsets: dict[int, float], tokens: Tokens, trees: Mapping[int, tuple[str, int]]
    ) -> dict[tuple[str, int], float]:
        """Where each tree's positions start from: the commonest offset of its prompt, or of any token without one."""
        of_prompt: dict[tuple[str, int], Counter[float]] = {}
        of_any: dict[tuple[str, int], Counter[float]] = {}
        for slot, token in self.ids.items():
            of_any.setdefault(trees[token], Counter())[offsets[slot]] += 1
            if tokens[token].completion is None:
                of_prompt.setdefault(trees[token], Counter())[offsets[slot]] += 1
        return {tree: counter.most_common(1)[0][0] for tree, counter in {**of_any, **of_prompt}.items()}


def _needed(groups: Sequence[PreferenceGroup]) -> set[int]:
    """Ids of the tokens that some supervised token stands behind."""
    needed: set[int] = set()
    for group in groups:
        needed.update(group.prompt_ids)
        for ids, supervised in zip(group.completions, group.supervised, strict=True):
            needed.update(ids[: supervised[-1]])
    return needed


def _rows(calls: Sequence[ForwardCall], seen: Mapping[int, Tensor], tokens: Tokens) -> list[_Row]:
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

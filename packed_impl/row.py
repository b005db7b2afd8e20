"""One row of groups before padding, in each layout: its segments, its tokens, and where completions are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packed_impl.bins import num_shared_prompt_tokens
from packed_impl.forest import Forest
from packed_impl.groups import Group, TokenIds, completions
from packed_impl.prefix_tree import prefix_forest

SlotRun = tuple[int, int]
"""First slot and number of slots."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row before padding.

    Args:
        forest: Its segments.
        ids: Its tokens, in runs.
        completion_runs: By index of the group, the slots of its completion tokens, in the order of the tokens.
    """

    forest: Forest
    ids: Sequence[TokenIds]
    completion_runs: Mapping[int, Sequence[SlotRun]]


def row_of_groups(groups: Sequence[Group], indices: Sequence[int], layout: str) -> Row:
    """Lay some groups out in one row.

    Args:
        groups: All groups.
        indices: Which of them the row holds, in the order of the row.
        layout: One of ``bins.LAYOUTS``.

    Returns:
        The row.
    """
    return _prefix_tree(groups, indices) if layout == "prefix-tree" else _side_by_side(groups, indices, layout)


def _side_by_side(groups: Sequence[Group], indices: Sequence[int], layout: str) -> Row:
    """Lay the trees of some groups side by side: each what responses share of the prompt, then every response.

    The layouts are the same tree, split at another place. A prompt ``a b`` with responses ``c`` and ``d``::

        shared-prompt          a b -> c, d
        repeat-prompt-token    a -> b c, b d      (of a prompt ``b`` no root is left: ``b c`` and ``b d`` are roots)
        block-diagonal         a b c, a b d       (roots both)
    """
    lengths: list[int] = []
    parents: list[int | None] = []
    ids: list[TokenIds] = []
    runs: dict[int, list[SlotRun]] = {}
    slot = 0
    for index in indices:
        group = groups[index]
        split = num_shared_prompt_tokens(len(group.prompt_ids), layout)
        root, repeated = group.prompt_ids[:split], group.prompt_ids[split:]
        parent = None
        if root:
            parent = len(lengths)
            lengths.append(split)
            parents.append(None)
            ids.append(root)
            slot += split
        runs[index] = []
        for response in completions(group):
            runs[index].append((slot + len(repeated), len(response)))
            lengths.append(len(repeated) + len(response))
            parents.append(parent)
            ids += (repeated, response)
            slot += lengths[-1]
    return Row(Forest.of(lengths, parents), ids, runs)


def _prefix_tree(groups: Sequence[Group], indices: Sequence[int]) -> Row:
    """Every sequence of the row as a path of one prefix tree; groups share what they have in common too."""
    owners = [index for index in indices for _ in completions(groups[index])]
    sequences = [groups[index].prompt_ids + response for index in indices for response in completions(groups[index])]
    tree = prefix_forest(sequences)
    runs: dict[int, list[SlotRun]] = {index: [] for index in indices}
    for number, index in enumerate(owners):
        runs[index] += tree.slot_runs(number, first=len(groups[index].prompt_ids))
    return Row(tree.forest, tree.segment_tokens, runs)

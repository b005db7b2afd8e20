"""Which groups share a row, and which rows share a batch: whole groups only, nothing cut, the same answer every time.

Works on lengths alone, so that a plan for a whole data set needs neither tensors nor masks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

LAYOUTS = ("shared-prompt", "repeat-prompt-token", "block-diagonal", "prefix-tree")

Rows = tuple[tuple[int, ...], ...]
"""Indices of the groups in each row, or of the items in each batch; ascending within one."""


class GroupDoesNotFit(ValueError):  # noqa: N818 - says what is wrong, as the other errors here do
    """A group is longer than a row may be; it is neither cut nor split."""


def num_shared_prompt_tokens(prompt: int, layout: str) -> int:
    """Prompt tokens that the responses of a group share; each response repeats the others.

    Args:
        prompt: Number of prompt tokens, at least one.
        layout: One of ``LAYOUTS``.

    Returns:
        Number of tokens, from the first on; for "prefix-tree" at least that many.

    Raises:
        ValueError: Unknown layout.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    return {"repeat-prompt-token": prompt - 1, "block-diagonal": 0}.get(layout, prompt)


def packed_length(prompt: int, responses: Sequence[int], *, layout: str = "shared-prompt") -> int:
    """Slots that one group takes in a packed row.

    ``s + sum_k (p - s + r_k)`` where responses share s of the p prompt tokens: all of them ("shared-prompt"), all but
    the last ("repeat-prompt-token") or none ("block-diagonal").

    How many slots a prefix tree takes depends on the tokens. Here it counts as a shared prompt, which is the most that
    one group can take; several groups in one row take at most the sum. So rows filled by this number never overflow,
    and may turn out shorter. `prefix_tree.num_prefix_slots` gives the number of slots of one group exactly.

    Args:
        prompt: Number of prompt tokens, at least one.
        responses: Number of tokens of each response.
        layout: One of ``LAYOUTS``.

    Returns:
        Number of slots; for "prefix-tree" the largest possible.

    Raises:
        ValueError: Unknown layout.
    """
    shared = num_shared_prompt_tokens(prompt, layout)
    return shared + len(responses) * (prompt - shared) + sum(responses)


def first_fit_decreasing(lengths: Sequence[int], limit: int, *, names: Sequence[str] = ()) -> Rows:
    """Put whole groups into as few rows as first-fit decreasing finds.

    From the longest group to the shortest (ties by index), each goes into the first row that has room::

        lengths 5 3 2 4, limit 7  ->  rows (0, 2) (1, 3)

    A tree over the rows holds the largest room below each node, so that the first row with room is found without
    looking at the others: n log n for n groups. At most 11/9 of the fewest possible rows, plus one.

    Args:
        lengths: Slots that each group takes.
        limit: Slots of a row.
        names: What messages call the groups; none for "group 0", "group 1", ...

    Returns:
        The rows in the order in which they were opened.

    Raises:
        GroupDoesNotFit: A group is longer than the limit; the message names the longest.
        ValueError: No group, or an empty one.
    """
    _check_lengths(lengths, limit, names)
    first_leaf = 1 << (len(lengths) - 1).bit_length()
    room = [limit] * (2 * first_leaf)
    rows: list[list[int]] = []
    for group in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[group]
        node = 1
        while node < first_leaf:
            node *= 2
            node += room[node] < length
        if node - first_leaf == len(rows):
            rows.append([])
        rows[node - first_leaf].append(group)
        room[node] -= length
        while node > 1:
            node //= 2
            left, right = room[2 * node], room[2 * node + 1]
            larger = left if left > right else right
            if room[node] == larger:
                break
            room[node] = larger
    return tuple(tuple(sorted(row)) for row in rows)


def batches_in_order(order: Sequence[int], batch_size: int) -> Rows:
    """Cut items into batches as they come.

    Args:
        order: The items in sampling order.
        batch_size: Items in a batch; the last batch may hold fewer.

    Returns:
        The batches in sampling order.

    Raises:
        ValueError: No item, or a batch of none.
    """
    if not order:
        raise ValueError("no item to batch: at least one is needed")
    if batch_size < 1:
        raise ValueError(f"batches of {batch_size} items: at least one is needed")
    return tuple(tuple(sorted(order[at : at + batch_size])) for at in range(0, len(order), batch_size))


def length_sorted_batches(order: Sequence[int], lengths: Sequence[int], batch_size: int) -> Rows:
    """Batches of items of like length: all items sorted by length, then cut (Preference Packing's batch sorting).

    Batches come out from short to long; shuffle them before training. Status: derived from the description in
    https://arxiv.org/abs/2602.24082, which gives no code.

    Args:
        order: The items in sampling order; it decides between items of equal length.
        lengths: Length of each item, by index.
        batch_size: Items in a batch; the last batch may hold fewer.

    Returns:
        The batches from short to long.

    Raises:
        ValueError: No item, or a batch of none.
    """
    # sorted() is stable: equal lengths stay in sampling order.
    return batches_in_order(sorted(order, key=lambda item: lengths[item]), batch_size)


def length_bucketed_batches(
    order: Sequence[int], lengths: Sequence[int], batch_size: int, upper_bounds: Sequence[int]
) -> Rows:
    """Batches within buckets of length, each filled in sampling order.

    An item falls into the first bucket whose upper bound it does not exceed, or into a last one above all bounds. A
    batch is complete when its bucket holds ``batch_size`` items; what is left over is cut into batches across
    neighbouring buckets at the end.

    Args:
        order: The items in sampling order.
        lengths: Length of each item, by index.
        batch_size: Items in a batch; the last batch may hold fewer.
        upper_bounds: Longest length in each bucket, ascending.

    Returns:
        The batches in the order in which they were completed.

    Raises:
        ValueError: No item, a batch of none, or bounds that do not ascend.
    """
    if any(low >= high for low, high in pairwise(upper_bounds)):
        raise ValueError(f"bounds of buckets {list(upper_bounds)}: expected ascending lengths")
    if not order or batch_size < 1:
        return batches_in_order(order, batch_size)
    buckets: list[list[int]] = [[] for _ in range(len(upper_bounds) + 1)]
    batches: list[tuple[int, ...]] = []
    for item in order:
        bucket = buckets[bisect_left(upper_bounds, lengths[item])]
        bucket.append(item)
        if len(bucket) == batch_size:
            batches.append(tuple(sorted(bucket)))
            bucket.clear()
    left_over = [item for bucket in buckets for item in bucket]
    return tuple(batches) + (batches_in_order(left_over, batch_size) if left_over else ())


def _check_lengths(lengths: Sequence[int], limit: int, names: Sequence[str]) -> None:
    if not lengths:
        raise ValueError("no group to pack: at least one is needed")
    if names and len(names) != len(lengths):
        raise ValueError(f"{len(names)} names for {len(lengths)} groups: expected one each, or none")
    shortest, longest = min(lengths), max(lengths)
    if shortest < 1:
        raise ValueError(f"{_name(lengths.index(shortest), names)} has length {shortest}: expected at least one token")
    if longest > limit:
        raise GroupDoesNotFit(
            f"{_name(lengths.index(longest), names)} takes {longest} slots, more than the row limit of {limit}: a "
            f"group is never cut or split; raise the limit to {longest} at least, or leave the group out"
        )


def _name(index: int, names: Sequence[str]) -> str:
    return names[index] if names else f"group {index}"

"""What all groups of a data set cost, packed and unpacked: exact sums, kept while the groups stream by.

The formulas are those of `costs`, on arrays: every one of them follows from a group's number of responses, the sums of
their lengths and of the squares, and the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.packing_plan.costs import NO_WORK, Work

MOST_GROUPS = 1024
"""Of a batch, so that a batch is small and its sums fit into 64 bits."""

_LARGEST = 2**62
"""Sums that may exceed it are kept in Python's integers instead."""


@dataclass(frozen=True, slots=True)
class GroupArrays:
    """Lengths of some groups, [N] each; int64, or Python's integers where sums might overflow.

    Args:
        prompt: Of the prompts.
        count: Number of responses.
        total: Sum over the responses.
        squares: Sum of their squares.
        longest: The longest response.
    """

    prompt: NDArray[Any]
    count: NDArray[Any]
    total: NDArray[Any]
    squares: NDArray[Any]
    longest: NDArray[Any]

    @classmethod
    def of(cls, prompts: Sequence[int], responses: Sequence[Sequence[int]]) -> GroupArrays:
        """Lengths of groups, each of them with one response at least.

        Raises:
            ValueError: More than `MOST_GROUPS`, or none.
        """
        if not 1 <= len(prompts) <= MOST_GROUPS:
            raise ValueError(f"a batch of {len(prompts)} groups: expected 1 to {MOST_GROUPS}")
        count = [len(lengths) for lengths in responses]
        flat = [length for lengths in responses for length in lengths]
        # The largest sum is that of Eq. 1, K (p + max r)^2.
        fits = len(prompts) * max(count) * (max(prompts) + max(flat)) ** 2 < _LARGEST
        kind = np.int64 if fits else np.object_
        lengths: NDArray[Any] = np.array(flat, dtype=kind)
        starts = np.concatenate([[0], np.cumsum(count[:-1])]).astype(np.intp)
        return cls(
            prompt=np.array(prompts, dtype=kind),
            count=np.array(count, dtype=kind),
            total=np.add.reduceat(lengths, starts),
            squares=np.add.reduceat(lengths * lengths, starts),
            longest=np.maximum.reduceat(lengths, starts),
        )

    def where(self, chosen: NDArray[np.bool_]) -> GroupArrays:
        """Some of the groups."""
        return GroupArrays(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over groups, without padding unless it is said.

    Args:
        num_groups: How many groups.
        num_responses: Their responses.
        unpacked: Work with a copy of the prompt for each response.
        packed: Work with one prompt for all responses of a group.
        padded_slots: Slots of K rows, all padded to the longest: ``K (p + max r)``.
        eq1_packs: Groups for which Preference Packing's Eq. 1 says that packing is cheaper.
        eq1_unpacked: Cost of unpacked groups as Eq. 1 counts it: ``K (p + max r)^2``.
        eq1_packed: Cost of packed groups as Eq. 1 counts it: ``(p + sum r)^2``.
    """

    num_groups: int = 0
    num_responses: int = 0
    unpacked: Work = NO_WORK
    packed: Work = NO_WORK
    padded_slots: int = 0
    eq1_packs: int = 0
    eq1_unpacked: int = 0
    eq1_packed: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def shared_share(self) -> float:
        """Tokens that packing need not compute / tokens unpacked: the second and further copies of the prompts."""
        return (self.unpacked.tokens - self.packed.tokens) / self.unpacked.tokens

    @property
    def token_ratio(self) -> float:
        """Tokens packed / unpacked."""
        return self.packed.tokens / self.unpacked.tokens

    @property
    def memory_ratio(self) -> float:
        """Slots packed / slots of sequences padded to the longest of their group: the paper's memory ratio."""
        return self.packed.tokens / self.padded_slots

    @property
    def eq1_ratio(self) -> float:
        """Cost packed / unpacked as Eq. 1 counts it, over all groups."""
        return self.eq1_packed / self.eq1_unpacked


NOTHING = Totals()


def totals_of(groups: GroupArrays) -> Totals:
    """Sum over some groups."""
    p, k, r, squares, longest = groups.prompt, groups.count, groups.total, groups.squares, groups.longest
    prompt_pairs, response_pairs = p * (p + 1) // 2, (squares + r) // 2
    predictors = _sum(r)
    dense_packed, dense_unpacked = (p + r) ** 2, k * (p + longest) ** 2
    return Totals(
        num_groups=len(p),
        num_responses=_sum(k),
        # (p + r)(p + r + 1) / 2 is p (p + 1) / 2 + p r + r (r + 1) / 2.
        unpacked=Work(_sum(k * p + r), _sum(k * prompt_pairs + p * r + response_pairs), predictors),
        packed=Work(_sum(p + r), _sum(prompt_pairs + p * r + response_pairs), predictors),
        padded_slots=_sum(k * (p + longest)),
        eq1_packs=_sum(dense_packed < dense_unpacked),
        eq1_unpacked=_sum(dense_unpacked),
        eq1_packed=_sum(dense_packed),
    )


def _sum(values: NDArray[Any]) -> int:
    return int(values.sum())

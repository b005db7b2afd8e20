"""What all pairs of a data set cost, packed and unpacked: exact sums, kept while the pairs stream by.

The formulas are those of `costs` for K = 2, on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify.packing_plan.costs import Work

Lengths = NDArray[np.int64]
"""Prompt, chosen and rejected length of each pair; [N, 3]."""

MOST_PAIRS = 1024
"""Of a batch: with sequences of 64 Mi tokens the sums below stay within 64 bits."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over pairs, without padding unless it is said.

    Args:
        num_pairs: How many pairs.
        unpacked: Work with a copy of the prompt for each response.
        packed: Work with one prompt for both.
        prompt_tokens: Tokens of the prompts, each counted once.
        padded_slots: Slots of two rows per pair, both padded to the longer: ``2 (p + max r)``.
        eq1_packs: Pairs for which Preference Packing's Eq. 1 says that packing is cheaper.
    """

    num_pairs: int
    unpacked: Work
    packed: Work
    prompt_tokens: int
    padded_slots: int
    eq1_packs: int

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.num_pairs + other.num_pairs,
            self.unpacked + other.unpacked,
            self.packed + other.packed,
            self.prompt_tokens + other.prompt_tokens,
            self.padded_slots + other.padded_slots,
            self.eq1_packs + other.eq1_packs,
        )

    @property
    def shared_share(self) -> float:
        """Tokens that packing need not compute / tokens unpacked: the second copies of the prompts."""
        return self.prompt_tokens / self.unpacked.tokens

    @property
    def token_ratio(self) -> float:
        """Tokens packed / unpacked."""
        return self.packed.tokens / self.unpacked.tokens

    @property
    def memory_ratio(self) -> float:
        """Slots packed / slots of pairs padded to their longer sequence: the paper's memory ratio, over the data."""
        return self.packed.tokens / self.padded_slots


NO_PAIRS = Totals(0, Work(0, 0, 0), Work(0, 0, 0), 0, 0, 0)


def totals_of(lengths: Lengths) -> Totals:
    """Sum over a batch.

    Args:
        lengths: At most `MOST_PAIRS` pairs.

    Returns:
        The sums.

    Raises:
        ValueError: A batch so large that a sum might overflow.
    """
    if len(lengths) > MOST_PAIRS:
        raise ValueError(f"a batch of {len(lengths)} pairs: expected at most {MOST_PAIRS}")
    prompt, chosen, rejected = lengths.T
    packed = prompt + chosen + rejected
    longer = prompt + np.maximum(chosen, rejected)
    branches = (chosen + rejected) * prompt + _causal_pairs(chosen) + _causal_pairs(rejected)
    predictors = int((chosen + rejected).sum())
    return Totals(
        num_pairs=len(lengths),
        unpacked=Work(
            tokens=int((prompt + packed).sum()),
            pairs=int((_causal_pairs(prompt + chosen) + _causal_pairs(prompt + rejected)).sum()),
            predictors=predictors,
        ),
        packed=Work(
            tokens=int(packed.sum()), pairs=int((_causal_pairs(prompt) + branches).sum()), predictors=predictors
        ),
        prompt_tokens=int(prompt.sum()),
        padded_slots=int((2 * longer).sum()),
        eq1_packs=int((packed**2 < 2 * longer**2).sum()),
    )


def _causal_pairs(lengths: Lengths) -> Lengths:
    return lengths * (lengths + 1) // 2

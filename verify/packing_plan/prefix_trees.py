"""What the prefix trees of tokenised groups hold: counted on their tokens, where lengths can only tell shared prompts.

A prefix tree computes each run of first tokens once, whichever sequences begin with it: a system prompt before all of
them, a question that stands in several rows, first words that two responses have in common.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from verify.packing_plan.costs import NO_WORK, GroupLengths, Work, causal_pairs, packed_work, unpacked_work
from verify.packing_plan.order import sampling_order
from verify.subjects.bins import first_fit_decreasing

_TOKEN_BYTES = 4

ALONE = "each sequence alone"
SHARED_PROMPTS = "prompts shared"
GROUP_TREES = "a prefix tree for each group"
ROW_TREES = "a prefix tree for each row of groups"
ONE_TREE = "one prefix tree of all groups"


@dataclass(frozen=True, slots=True)
class TokenGroup:
    """Token ids of one group, four bytes each: thousands of groups fit into memory, and compare fast.

    Args:
        prompt: Of the prompt.
        responses: Of each response.
    """

    prompt: bytes
    responses: tuple[bytes, ...]

    @classmethod
    def of(cls, prompt_ids: Sequence[int], completions: Iterable[Sequence[int]]) -> TokenGroup:
        """Hold the token ids of a group; each from 0 to 2^32 - 1."""
        return cls(_four_bytes_each(prompt_ids), tuple(map(_four_bytes_each, completions)))

    @property
    def lengths(self) -> GroupLengths:
        """Number of tokens of the prompt and of each response."""
        return GroupLengths(_num_tokens(self.prompt), tuple(map(_num_tokens, self.responses)))

    @property
    def sequences(self) -> list[bytes]:
        """The prompt with each response."""
        return [self.prompt + response for response in self.responses]


def _four_bytes_each(ids: Sequence[int]) -> bytes:
    return struct.pack(f">{len(ids)}I", *ids)


def _num_tokens(ids: bytes) -> int:
    return len(ids) // _TOKEN_BYTES


def counted_works(groups: Sequence[TokenGroup], row_limit: int, seed: int) -> Mapping[str, Work]:
    """What some groups cost, from each sequence by itself to one tree of all of them, without padding.

    Rows are filled as in sequence packing with shared prompts: whole groups, shuffled, first-fit decreasing by what
    they take with a shared prompt. So a row never overflows, and its tree may leave room in it.

    Args:
        groups: The groups, in the order of the file.
        row_limit: Slots of a row; every group fits.
        seed: Seed of the shuffle.

    Returns:
        The work by what is shared, from nothing to everything; none costs more than the one before it.

    Raises:
        ValueError: No group, or one longer than a row.
    """
    lengths = [group.lengths for group in groups]
    order = sampling_order(len(groups), seed)
    rows = first_fit_decreasing([lengths[position].packed for position in order], row_limit)
    return {
        ALONE: sum(map(unpacked_work, lengths), NO_WORK),
        SHARED_PROMPTS: sum(map(packed_work, lengths), NO_WORK),
        GROUP_TREES: sum((tree_work([group]) for group in groups), NO_WORK),
        ROW_TREES: sum((tree_work([groups[order[item]] for item in row]) for row in rows), NO_WORK),
        ONE_TREE: tree_work(groups),
    }


def tree_work(groups: Sequence[TokenGroup]) -> Work:
    """The work of one prefix tree of all sequences of some groups.

    It has a token for each distinct prefix of its sequences, which attends to itself and all before it. In sorted order
    a sequence shares with those before it what it shares with its neighbour, so that of n tokens, s of them shared,
    n - s are new, with n (n + 1) / 2 - s (s + 1) / 2 pairs::

        a b c    3 tokens, none shared     3 new, 6 pairs
        a b d    3 tokens, a b shared      1 new, 3 pairs
        a e      2 tokens, a shared        1 new, 2 pairs

    Args:
        groups: The groups; at least one.

    Returns:
        The work; each response token still has a prediction of its own.
    """
    ordered = sorted(sequence for group in groups for sequence in group.sequences)
    shared = [0, *(_num_shared(a, b) for a, b in pairwise(ordered))]
    lengths = list(map(_num_tokens, ordered))
    return Work(
        tokens=sum(lengths) - sum(shared),
        pairs=sum(map(causal_pairs, lengths)) - sum(map(causal_pairs, shared)),
        predictors=sum(_num_tokens(response) for group in groups for response in group.responses),
    )


def _num_shared(a: bytes, b: bytes) -> int:
    """How many tokens are equal, from the first on."""
    most = min(len(a), len(b))
    unequal = np.frombuffer(a, np.uint32, most // _TOKEN_BYTES) != np.frombuffer(b, np.uint32, most // _TOKEN_BYTES)
    return int(unequal.argmax()) if unequal.any() else len(unequal)

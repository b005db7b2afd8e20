"""A sample that is spread over the lengths: one pair from each of as many strata as pairs are asked for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from verify.data.rows import DataError


def stratified_sample(num_tokens: Sequence[int], num_pairs: int, seed: int) -> tuple[int, ...]:
    """Draw indices such that short, middling and long items are all there.

    The items are sorted by length (ties by index) and cut into ``num_pairs`` strata whose sizes differ by one at
    most; one item is drawn from each::

        lengths 10 50 20 90, 2 strata  ->  {10, 20} {50, 90}  ->  one of the first, one of the second

    Args:
        num_tokens: Length of each item, in tokens.
        num_pairs: How many to draw, without repetition.
        seed: Seed of the generator; the same seed and lengths draw the same items.

    Returns:
        The drawn indices, ascending.

    Raises:
        DataError: Fewer than one item asked for, or more than there are.
    """
    if num_pairs < 1:
        raise DataError(f"{num_pairs} pairs asked for: expected at least 1")
    if num_pairs > len(num_tokens):
        raise DataError(f"{num_pairs} pairs asked for, but only {len(num_tokens)} are usable: ask for fewer")
    generator = random.Random(seed)
    by_length = sorted(range(len(num_tokens)), key=lambda i: (num_tokens[i], i))
    bounds = [i * len(by_length) // num_pairs for i in range(num_pairs + 1)]
    return tuple(sorted(by_length[generator.randrange(*stratum)] for stratum in itertools.pairwise(bounds)))

"""Supervised examples with prompts of their own, to be packed behind each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from verify.groups import PreferenceGroup, TokenIds

Examples = tuple[PreferenceGroup, ...]

SIZES = ((9, 7), (6, 11), (13, 5), (8, 8))
"""Tokens of prompt and completion of four short examples."""


def draw_examples(vocab_size: int, seed: int, sizes: Sequence[tuple[int, int]] = SIZES) -> Examples:
    """Examples of random tokens.

    Args:
        vocab_size: Token ids are drawn from [1, vocab_size); 0 is padding in many models.
        seed: Seed of the tokens.
        sizes: Tokens of prompt and completion of each example.

    Returns:
        One example, 1+0, for each size.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.randrange(1, vocab_size) for _ in range(count))

    return tuple(PreferenceGroup(tokens(prompt), (tokens(completion),)) for prompt, completion in sizes)


def check_examples(examples: Sequence[PreferenceGroup]) -> Examples:
    """Refuse what cannot be packed behind something, or could not be told apart from it.

    Raises:
        ValueError: Fewer than two examples, or one that is not a prompt with one completion.
    """
    if len(examples) < 2:
        raise ValueError(f"{len(examples)} examples: contamination needs at least two, one behind the other")
    for index, example in enumerate(examples):
        if len(example.completions) != 1:
            raise ValueError(
                f"example {index} has {len(example.completions)} completions; give each a prompt of its own and one "
                "completion"
            )
    return tuple(examples)


def rotations(examples: Sequence[PreferenceGroup]) -> tuple[Examples, ...]:
    """Every order that begins with another example: each stands at each place once, behind different neighbours.

    Of ``a b c``: ``a b c``, ``b c a``, ``c a b``.
    """
    return tuple((*examples[first:], *examples[:first]) for first in range(len(examples)))


def joined(row: Sequence[PreferenceGroup], place: int) -> PreferenceGroup:
    """One example of a row with all that stands in front of it as the beginning of its prompt: what a full leak sees.

    Args:
        row: Examples in the order of the row.
        place: Which of them.

    Returns:
        The example with the longer prompt.
    """
    in_front = [t for example in row[:place] for t in (*example.prompt_ids, *example.completions[0])]
    return replace(row[place], prompt_ids=(*in_front, *row[place].prompt_ids))

"""The default cases of the tiny model.

Each case exists because some public fault shows only there; ``why`` says which property it brings. Token ids are
random with a recorded seed, so that no case depends on a tokenizer.
"""

from __future__ import annotations

import random

from verify.cases import Case
from verify.default_cases.examples import examples_by_length, examples_of_conversations
from verify.default_cases.groups import groups_and_trees, groups_by_content
from verify.default_cases.pairs import pairs_and_their_prompts, pairs_by_content, pairs_by_length, prompts_begin_alike
from verify.groups import TokenIds


def tiny_cases(vocab_size: int, seed: int) -> tuple[Case, ...]:
    """The embedded default cases: pairs, larger groups and supervised examples.

    What an implementation may do wrong with one kind it may do wrong with another alone, so that lengths, repeated
    prompts, special ids and the like come in each.

    Args:
        vocab_size: Token ids are drawn from [0, vocab_size).
        seed: Seed of the token ids.

    Returns:
        Cases with stable names, in a fixed order.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    # New cases are drawn last: the token ids of all others stay as they are.
    return (
        *pairs_by_length(tokens),
        *pairs_by_content(tokens),
        *pairs_and_their_prompts(tokens),
        *groups_and_trees(tokens),
        *examples_by_length(tokens),
        prompts_begin_alike(tokens),
        *groups_by_content(tokens),
        *examples_of_conversations(tokens),
    )

"""One case for each objective that compares responses beside the sigmoid loss, which all other cases have."""

from __future__ import annotations

import random

from verify.cases import Case
from verify.groups import PreferenceGroup, TokenIds
from verify.objective import COMPARING_NAMES


def objective_cases(vocab_size: int, seed: int) -> tuple[Case, ...]:
    """Cases of two uneven groups, each under an objective of its own. One response ends in token 0, a word here.

    In the second group some tokens are not supervised: a mean over tokens is one over those that are.

    Args:
        vocab_size: Token ids are drawn from [0, vocab_size).
        seed: Seed of the token ids.

    Returns:
        Cases named after their objective; all of them hold the same groups.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    groups = (
        PreferenceGroup(tokens(7), (tokens(5), tokens(2)), (tokens(9), tokens(1), tokens(4))),
        PreferenceGroup(
            tokens(3), (tokens(6),), (tokens(3), (*tokens(7), 0)),
            completion_masks=((True, True, False, False, True, True), (True,) * 3, (False,) * 3 + (True,) * 5),
        ),
    )  # fmt: skip
    return tuple(
        Case(
            name=f"objective-{name}",
            why=f"uneven groups with responses of uneven length under {name}",
            groups=groups,
            objective_name=name,
        )
        for name in COMPARING_NAMES
        if name != "sigmoid"
    )

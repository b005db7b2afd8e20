"""Two cases over each frozen policy beside the model with its adapters off, over which all other cases are."""

from __future__ import annotations

import random

from verify.cases import Case
from verify.frozen_policy import REFERENCE_NAMES
from verify.groups import PreferenceGroup, TokenIds


def reference_cases(vocab_size: int, seed: int) -> tuple[Case, ...]:
    """Cases of pairs and of larger groups, the same over each frozen policy.

    What is looked up by less than prompt and response is mixed up: a response stands behind two prompts, and a prompt
    has other responses in another group.

    Args:
        vocab_size: Token ids are drawn from [0, vocab_size).
        seed: Seed of the token ids.

    Returns:
        Cases named after their frozen policy.
    """
    rng = random.Random(seed)

    def tokens(count: int) -> TokenIds:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    prompt, other, response = tokens(6), tokens(4), tokens(5)
    pairs = (
        PreferenceGroup(prompt, (response,), (tokens(3),)),
        PreferenceGroup(other, (tokens(2),), (response,)),
        PreferenceGroup(prompt, (tokens(4),), (tokens(7),)),
    )
    groups = (
        PreferenceGroup(prompt, (response, tokens(2)), (tokens(6),)),
        PreferenceGroup(other, (response,), (tokens(3), tokens(1), tokens(4))),
    )
    return tuple(
        Case(name=f"reference-{name}{of_kind}", why=f"{why}, over {words}", groups=of_case, reference=name)
        for name, words in _OTHERS.items()
        for of_kind, of_case, why in (
            ("", pairs, "a response behind two prompts and a prompt with other responses"),
            ("-groups", groups, "groups of uneven size that share a response"),
        )
    )


_WORDS = {
    "frozen-adapter": "another, frozen adapter",
    "separate-model": "another frozen model",
    "cached": "log-probs that were computed before",
}
_OTHERS = {name: _WORDS[name] for name in REFERENCE_NAMES if name != "adapters-off"}

"""What is trained on: batches of random tokens in given lengths, for every round and rank, and pairs that are held out.

Every path of a round runs the same batch. What tokens say does not change what a dense decoder costs, only how many
there are; where real pairs are given and fit the model, they are used as they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from verify.groups import PreferenceGroup
from verify.packing_plan.costs import GroupLengths
from verify.packing_plan.distributions import named_distribution

REGIMES = ("prompt-long", "balanced", "response-long")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """What a part of a run is to measure.

    Args:
        name: Name in reports, unique in a run.
        seed: Seed of tokens and of the order of pairs.
        num_steps: Rounds that are measured; each path makes one step in each.
        pool: Pairs that steps take, in turn; what is held out is none of them.
        held_out: Pairs that are held out; may be empty.
        source: Where the lengths come from, in words.
        enters_comparison: Whether it is one of those that recorded figures were measured on.
    """

    name: str
    seed: int
    num_steps: int
    pool: tuple[PreferenceGroup, ...]
    held_out: tuple[PreferenceGroup, ...]
    source: str
    enters_comparison: bool = True

    def batches(self, *, num_ranks: int, pairs_per_rank: int) -> list[list[tuple[PreferenceGroup, ...]]]:
        """The batch of each rank in each round, [rounds][ranks]; the pool is begun anew where it is used up."""
        pairs = cycle(self.pool)
        return [[tuple(islice(pairs, pairs_per_rank)) for _ in range(num_ranks)] for _ in range(self.num_steps)]


def lengths_of(groups: Sequence[PreferenceGroup]) -> list[GroupLengths]:
    """How long each group is."""
    return [GroupLengths(len(group.prompt_ids), tuple(map(len, group.completions))) for group in groups]


def regime_plan(
    regime: str, *, seed: int, num_steps: int, num_pairs: int, num_held_out: int, vocab_size: int
) -> WorkloadPlan:
    """A plan of one of the three regimes: prompt and response of 192 and 64 tokens, 128 and 128, or 64 and 192.

    Args:
        regime: One of ``REGIMES``.
        seed: Seed of the tokens.
        num_steps: Rounds.
        num_pairs: Pairs that all rounds and ranks take together.
        num_held_out: Pairs held out.
        vocab_size: Token ids are drawn below.

    Raises:
        ValueError: An unknown regime.
    """
    if regime not in REGIMES:
        raise ValueError(f"unknown regime {regime!r}: give some of {', '.join(REGIMES)}")
    lengths = named_distribution(regime).draw(num_pairs + num_held_out, seed)
    text = f"prompt {lengths[0].prompt}, responses {lengths[0].responses[0]} tokens"
    return drawn_plan(
        regime, lengths, seed=seed, num_steps=num_steps, num_held_out=num_held_out, vocab_size=vocab_size, source=text
    )


def length_plan(length: int, *, seed: int, num_steps: int, num_pairs: int, vocab_size: int) -> WorkloadPlan:
    """A plan of one length of a sweep: half of each sequence is prompt; nothing is held out.

    Raises:
        ValueError: A length below two.
    """
    if length < 2:
        raise ValueError(f"--sweep {length}: a sequence has at least two tokens, one of prompt and one of response")
    lengths = [GroupLengths(length - length // 2, (length // 2, length // 2))] * num_pairs
    return drawn_plan(
        f"length-{length}",
        lengths,
        seed=seed,
        num_steps=num_steps,
        num_held_out=0,
        vocab_size=vocab_size,
        source=f"sequences of {length} tokens, half of them prompt",
        enters_comparison=False,
    )


def drawn_plan(
    name: str,
    lengths: Sequence[GroupLengths],
    *,
    seed: int,
    num_steps: int,
    num_held_out: int,
    vocab_size: int,
    source: str,
    enters_comparison: bool = True,
) -> WorkloadPlan:
    """A plan over pairs of random tokens in the given lengths; the last ones are held out.

    Raises:
        ValueError: Nothing is left to train on.
    """
    groups = tuple(_random_groups(lengths, random.Random(seed), vocab_size))
    return split_plan(
        name, groups, seed=seed, num_steps=num_steps, num_held_out=num_held_out, source=source,
        enters_comparison=enters_comparison,
    )  # fmt: skip


def split_plan(
    name: str,
    groups: Sequence[PreferenceGroup],
    *,
    seed: int,
    num_steps: int,
    num_held_out: int,
    source: str,
    enters_comparison: bool = True,
) -> WorkloadPlan:
    """A plan over given pairs; the last ones are held out.

    Raises:
        ValueError: Nothing is left to train on.
    """
    num_trained = len(groups) - num_held_out
    if num_trained < 1:
        raise ValueError(
            f"{name}: {len(groups)} pairs, of which {num_held_out} are to be held out: none is left to train on; "
            "hold out fewer (--held-out), or give more pairs"
        )
    return WorkloadPlan(
        name=name,
        seed=seed,
        num_steps=num_steps,
        pool=tuple(groups[:num_trained]),
        held_out=tuple(groups[num_trained:]),
        source=source,
        enters_comparison=enters_comparison,
    )


def _random_groups(
    lengths: Sequence[GroupLengths], generator: random.Random, vocab_size: int
) -> Iterator[PreferenceGroup]:
    def tokens(count: int) -> tuple[int, ...]:
        return tuple(generator.choices(range(vocab_size), k=count))

    for each in lengths:
        chosen, rejected = each.responses
        yield PreferenceGroup(tokens(each.prompt), (tokens(chosen),), (tokens(rejected),))

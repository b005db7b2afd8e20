"""The cost of one group, packed and unpacked, counted exactly; and Preference Packing's Eq. 1 beside it.

For a prompt of p tokens and responses of r_1 ... r_K tokens, without padding (status: derived, and tested against
counts of every token and pair):

    tokens            unpacked  K p + sum_k r_k                  packed  p + sum_k r_k
    attention pairs   unpacked  sum_k (p + r_k)(p + r_k + 1)/2   packed  p (p + 1)/2 + sum_k [ r_k p + r_k (r_k + 1)/2 ]
    identity          unpacked pairs - packed pairs = (K - 1) p (p + 1)/2

So with a branch mask that computes nothing in vain, packing never costs more. Backward passes cost a fixed multiple of
forward ones in both layouts, so ratios of forward FLOPs are ratios of FLOPs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GroupLengths:
    """Lengths of one group, in tokens.

    Args:
        prompt: Of the prompt; at least one.
        responses: Of each response; at least one response, each of at least one token.

    Raises:
        ValueError: An empty prompt or response, or no response.
    """

    prompt: int
    responses: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.prompt < 1 or not self.responses or min(self.responses) < 1:
            raise ValueError(
                f"prompt of {self.prompt} and responses of {list(self.responses)} tokens: "
                "expected at least one token in each, and at least one response"
            )

    @property
    def packed(self) -> int:
        """Slots of the packed group: the prompt once, and every response."""
        return self.prompt + sum(self.responses)

    @property
    def sequences(self) -> tuple[int, ...]:
        """Length of each unpacked sequence: the prompt and one response."""
        return tuple(self.prompt + response for response in self.responses)


@dataclass(frozen=True, slots=True)
class Work:
    """What a forward pass has to do, in units that no model enters.

    Args:
        tokens: Positions that go through the linear layers.
        pairs: Pairs of query and key that attention computes.
        predictors: Positions that go through the output head.
    """

    tokens: int
    pairs: int
    predictors: int

    def __add__(self, other: Work) -> Work:
        return Work(self.tokens + other.tokens, self.pairs + other.pairs, self.predictors + other.predictors)


NO_WORK = Work(0, 0, 0)


def causal_pairs(length: int) -> int:
    """Attention pairs of one sequence: n (n + 1) / 2."""
    return length * (length + 1) // 2


def unpacked_work(group: GroupLengths) -> Work:
    """The work of a group whose every sequence has its own copy of the prompt."""
    return Work(
        tokens=sum(group.sequences),
        pairs=sum(causal_pairs(length) for length in group.sequences),
        predictors=sum(group.responses),
    )


def packed_work(group: GroupLengths) -> Work:
    """The work of a group whose responses branch off one prompt."""
    branches = sum(response * group.prompt + causal_pairs(response) for response in group.responses)
    return Work(tokens=group.packed, pairs=causal_pairs(group.prompt) + branches, predictors=sum(group.responses))


class Decoder(Protocol):
    """Sizes of a dense decoder with gated feed-forward layers (Qwen3, Llama, Mistral and their kin)."""

    @property
    def vocab_size(self) -> int: ...  # noqa: D102 - the names are those of transformers' configs
    @property
    def hidden_size(self) -> int: ...  # noqa: D102
    @property
    def intermediate_size(self) -> int: ...  # noqa: D102
    @property
    def num_hidden_layers(self) -> int: ...  # noqa: D102
    @property
    def num_attention_heads(self) -> int: ...  # noqa: D102
    @property
    def num_key_value_heads(self) -> int: ...  # noqa: D102
    @property
    def head_dim(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class FlopPrices:
    """Forward FLOPs of a model by token, pair and predictor, all layers together.

    A multiply and an add count as two. Per layer ``2 * linear_params * tokens + 4 * heads * head_dim * pairs``; the
    head ``2 * hidden * vocab * predictors``. Embedding, norms, softmax and adapters are left out.
    """

    by_token: int
    by_pair: int
    by_predictor: int

    @classmethod
    def of(cls, config: Decoder) -> FlopPrices:
        """The prices of a decoder."""
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        attention_params = 2 * config.hidden_size * config.head_dim * (heads + kv_heads)
        mlp_params = 3 * config.hidden_size * config.intermediate_size
        return cls(
            by_token=2 * (attention_params + mlp_params) * config.num_hidden_layers,
            by_pair=4 * heads * config.head_dim * config.num_hidden_layers,
            by_predictor=2 * config.hidden_size * config.vocab_size,
        )

    def flops(self, work: Work) -> int:
        """Forward FLOPs of some work."""
        return self.by_token * work.tokens + self.by_pair * work.pairs + self.by_predictor * work.predictors


def eq1_says_packing(group: GroupLengths) -> bool:
    """Preference Packing's Eq. 1 (https://arxiv.org/abs/2602.24082; published): packing is cheaper iff this holds.

    ``p + sum_k r_k < sqrt(K) (p + max_k r_k)``: dense attention over the whole packed row against K rows padded to the
    longest, with no linear layers. Too pessimistic wherever linear layers dominate or a mask skips what is masked.
    """
    count = len(group.responses)
    return group.packed**2 < count * max(group.sequences) ** 2


def eq1_cost_ratio(group: GroupLengths) -> float:
    """Packed over unpacked cost as Eq. 1 counts it: ``(p + sum r)^2 / (K (p + max r)^2)``; below 1 iff Eq. 1 holds."""
    return float(group.packed**2 / (len(group.responses) * max(group.sequences) ** 2))


def memory_ratio(group: GroupLengths) -> float:
    """The paper's memory ratio with an attention of linear memory: ``(p + sum r) / (K (p + max r))`` (published)."""
    return group.packed / (len(group.responses) * max(group.sequences))


def break_even_tokens(prices: FlopPrices) -> float:
    """The sequence length at which attention costs as much as the linear layers; 7,680 for Qwen3-0.6B (derived).

    A sequence of n tokens has n (n + 1) / 2 pairs, so ``n = 2 by_token / by_pair - 1``.
    """
    return 2 * prices.by_token / prices.by_pair - 1 if prices.by_pair else math.inf

"""The algebra against counts of every token and every pair."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.models.configs import NAMED_CONFIGS
from verify.packing_plan.costs import (
    FlopPrices,
    GroupLengths,
    Work,
    break_even_tokens,
    eq1_cost_ratio,
    eq1_says_packing,
    memory_ratio,
    packed_work,
    unpacked_work,
)
from verify.packing_plan.decoder_sizes import read_decoder_sizes

some_groups = st.builds(GroupLengths, st.integers(1, 9), st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple))


def walked(sequences: list[list[str]]) -> tuple[int, int]:
    """Distinct tokens, and distinct (query, key) pairs, of sequences whose tokens have names."""
    tokens = {token for sequence in sequences for token in sequence}
    pairs = {(q, k) for sequence in sequences for i, q in enumerate(sequence) for k in sequence[: i + 1]}
    return len(tokens), len(pairs)


def sequences_of(group: GroupLengths, *, shared: bool) -> list[list[str]]:
    return [
        [f"p{i}" if shared else f"p{i} of {k}" for i in range(group.prompt)] + [f"r{i} of {k}" for i in range(length)]
        for k, length in enumerate(group.responses)
    ]


@given(some_groups)
def test_work_is_what_a_walk_over_the_sequences_counts(group: GroupLengths) -> None:
    for work, shared in ((unpacked_work(group), False), (packed_work(group), True)):
        assert (work.tokens, work.pairs) == walked(sequences_of(group, shared=shared))
        assert work.predictors == sum(group.responses)


@given(some_groups)
def test_packing_saves_the_pairs_of_every_further_prompt_and_so_never_costs_more(group: GroupLengths) -> None:
    saved = unpacked_work(group).pairs - packed_work(group).pairs
    assert saved == (len(group.responses) - 1) * group.prompt * (group.prompt + 1) // 2
    assert saved >= 0
    assert unpacked_work(group).tokens - packed_work(group).tokens == (len(group.responses) - 1) * group.prompt


@given(st.integers(1, 50), st.integers(1, 50), st.integers(2, 6))
def test_eq1_for_equal_responses_is_a_bound_on_their_length(prompt: int, response: int, count: int) -> None:
    """r / p < 1 / sqrt(K), decided in integers."""
    group = GroupLengths(prompt, (response,) * count)
    assert eq1_says_packing(group) == (count * response**2 < prompt**2)
    assert (eq1_cost_ratio(group) < 1) == eq1_says_packing(group)


def test_eq1_at_the_figure_of_the_note() -> None:
    """(p + 2r)^2 / (2 (p + r)^2) = 1.125 at p = r = 1024: dense packing loses where the branch mask saves."""
    group = GroupLengths(1024, (1024, 1024))
    assert eq1_cost_ratio(group) == 1.125
    assert not eq1_says_packing(group)
    assert packed_work(group).pairs < unpacked_work(group).pairs


def test_memory_ratio_counts_slots_against_padded_rows() -> None:
    assert memory_ratio(GroupLengths(6, (1, 3))) == 10 / 18


@pytest.mark.parametrize("name", [name for name, config in NAMED_CONFIGS.items() if config.num_parameters])
def test_linear_parameters_add_up_to_the_published_count(name: str) -> None:
    """Half the FLOPs of a token and a predictor are the weights they meet; norms and a separate embedding remain."""
    config = NAMED_CONFIGS[name]
    prices = FlopPrices.of(config)
    met = prices.by_token // 2 + prices.by_predictor // 2
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    of_heads = 2 * config.head_dim if config.model_type == "qwen3" else 0  # Llama does not normalise queries and keys
    norms = config.num_hidden_layers * (2 * config.hidden_size + of_heads) + config.hidden_size
    assert met + embedding + norms == config.num_parameters


@pytest.mark.parametrize(("name", "published"), [("qwen3-0.6b", 7_680), ("qwen3-8b", 47_104)])
def test_attention_reaches_the_linear_layers_at_the_published_length(name: str, published: int) -> None:
    assert math.isclose(break_even_tokens(FlopPrices.of(NAMED_CONFIGS[name])), published, abs_tol=1)


def test_flops_of_experts_are_not_predicted() -> None:
    with pytest.raises(
        ValueError, match=r"model tiny-qwen3-moe: FLOPs are predicted for dense decoders .* not for exp"
    ):
        read_decoder_sizes("tiny-qwen3-moe")


def test_flops_are_a_weighted_sum() -> None:
    assert FlopPrices(100, 10, 1).flops(Work(2, 3, 4)) == 234


@pytest.mark.parametrize(("prompt", "responses"), [(0, (1,)), (1, ()), (1, (1, 0))])
def test_empty_parts_are_refused(prompt: int, responses: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        GroupLengths(prompt, responses)

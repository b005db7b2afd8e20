"""Every weight trained: the oracle's gradients against the slope of its loss, and against transformers'."""

from __future__ import annotations

import pytest
import torch

from reference_impl import pairwise
from reference_impl.batch_objective import apply_objective
from reference_impl.finite_differences import random_direction_of, slope_from_gradients, slope_from_losses
from reference_impl.ref_policy import AdaptersOff, Cached, FrozenAdapter, SeparateModel
from reference_impl.reward_model import oracle_reward_step
from reference_impl.step import oracle_step

OBJECTIVE = {"beta": 0.4, "label_smoothing": 0.1}
EMBEDDING = "model.embed_tokens.weight"


def _separate(tiny, family: str, **overrides) -> SeparateModel:
    return SeparateModel(tiny(family, seed=5, adapters=False, **overrides).weights)


@pytest.mark.parametrize(
    ("family", "tied"), [("qwen3", False), ("qwen3", True), ("llama3", True), ("qwen2", False), ("qwen3_moe", False)]
)
def test_gradients_of_every_weight_are_the_slope_of_the_loss(family, tied, tiny, pairs) -> None:
    made = tiny(family, adapters=False, tie_word_embeddings=tied)
    arguments = {"train": "all", "ref_policy": _separate(tiny, family, tie_word_embeddings=tied), **OBJECTIVE}
    gradients = oracle_step(pairs, made.weights, made.config, {}, **arguments).gradients
    assert gradients.keys() == made.weights.keys()
    assert ("lm_head.weight" in gradients) != tied
    generator = torch.Generator().manual_seed(7)
    # In the space of all weights, and in that of one weight at a time: of each kind there is one.
    last = f"model.layers.{made.config.num_layers - 1}."
    spaces = [made.weights, *({n: w} for n, w in made.weights.items() if ".layers." not in n or n.startswith(last))]
    for space in spaces:
        direction = random_direction_of(space, generator)
        measured = slope_from_losses(pairs, made.weights, made.config, {}, direction, distance=1e-4, **arguments)
        of_space = {name: gradients[name] for name in space}
        assert slope_from_gradients(of_space, direction) == pytest.approx(measured, rel=1e-6, abs=1e-11), next(
            iter(space)
        )
        assert measured != 0


@pytest.mark.parametrize("objective", ["ipo", "groupdpo-softmax", "sft-token-mean", "sft-example-mean"])
def test_gradients_are_the_slope_of_every_kind_of_objective(objective, tiny, request) -> None:
    is_sft = objective.startswith("sft")
    made, groups = tiny("llama", adapters=False, tie_word_embeddings=True), "examples" if is_sft else "many"
    ref_policy = None if is_sft else _separate(tiny, "llama", tie_word_embeddings=True)
    arguments = {"train": "all", "objective": objective, "beta": 0.4, "ref_policy": ref_policy}
    groups = request.getfixturevalue(groups)
    gradients = oracle_step(groups, made.weights, made.config, {}, **arguments).gradients
    direction = random_direction_of(made.weights, torch.Generator().manual_seed(7))
    measured = slope_from_losses(groups, made.weights, made.config, {}, direction, distance=1e-4, **arguments)
    assert slope_from_gradients(gradients, direction) == pytest.approx(measured, rel=1e-7)
    assert abs(measured) > 1e-4


def test_gradients_of_a_reward_model_are_the_slope_of_its_loss(tiny, pairs) -> None:
    made = tiny(adapters=False)
    head = torch.randn(1, made.config.hidden_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    trained = {name: weight for name, weight in made.weights.items() if name != "lm_head.weight"}

    def step(weights, head):
        return oracle_reward_step(pairs, weights, made.config, {}, head, train="all")

    gradients = step(trained, head).gradients
    assert gradients.keys() == trained.keys() | {"score.weight"}
    direction = random_direction_of({**trained, "score.weight": head}, torch.Generator().manual_seed(7))

    def loss(distance: float) -> float:
        moved = {name: weight + distance * direction[name] for name, weight in trained.items()}
        return float(step(moved, head + distance * direction["score.weight"]).loss)

    measured = (loss(1e-4) - loss(-1e-4)) / 2e-4
    assert slope_from_gradients(gradients, direction) == pytest.approx(measured, rel=1e-5)


@pytest.mark.parametrize(("family", "tied"), [("qwen3", False), ("llama3", True), ("qwen3_moe", False)])
def test_gradients_of_every_weight_are_those_of_transformers(family, tied, tiny, pairs, float64_throughout) -> None:
    made = tiny(family, adapters=False, tie_word_embeddings=tied)
    separate = _separate(tiny, family, tie_word_embeddings=tied)
    step = oracle_step(pairs, made.weights, made.config, {}, train="all", ref_policy=separate, **OBJECTIVE)
    model = float64_throughout(made.model).requires_grad_(True)
    logps = pairwise.per_token_logps(model, pairs)
    apply_objective(logps, step.ref_per_token_logps, pairs, objective="sigmoid", **OBJECTIVE).loss.backward()
    actual = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert actual.keys() == step.gradients.keys()
    for name, gradient in step.gradients.items():
        assert torch.allclose(actual[name], gradient, rtol=1e-9, atol=1e-12 * float(gradient.abs().max())), name


def test_a_tied_embedding_has_the_sum_of_the_gradients_of_its_two_uses(tiny, pairs) -> None:
    tied = tiny(adapters=False, tie_word_embeddings=True)
    untied = tiny(adapters=False)
    twice = {**tied.weights, "lm_head.weight": tied.weights[EMBEDDING]}
    separate = SeparateModel(untied.weights, untied.config)
    of_one, of_two = (
        oracle_step(pairs, weights, made.config, {}, train="all", ref_policy=separate, **OBJECTIVE).gradients
        for weights, made in ((tied.weights, tied), (twice, untied))
    )
    total = of_two[EMBEDDING] + of_two["lm_head.weight"]
    assert torch.allclose(of_one[EMBEDDING], total, rtol=1e-12, atol=1e-15)
    assert not torch.allclose(of_one[EMBEDDING], of_two["lm_head.weight"], rtol=1e-3)


def test_only_rows_of_tokens_that_are_fed_have_a_gradient_where_the_head_is_not_tied(tiny, pairs) -> None:
    made = tiny(adapters=False)
    separate = _separate(tiny, "qwen3")
    gradients = oracle_step(
        pairs, made.weights, made.config, {}, train="all", ref_policy=separate, **OBJECTIVE
    ).gradients
    fed = {
        token
        for pair in pairs
        for completion in (*pair.positives, *pair.negatives)
        for token in (*pair.prompt_ids, *completion[:-1])
    }
    assert {row for row, of_row in enumerate(gradients[EMBEDDING]) if bool(of_row.any())} == fed
    assert bool(gradients["lm_head.weight"].any(dim=1).all())


def test_weights_of_the_policy_are_left_as_they_are(tiny, pairs) -> None:
    made = tiny(adapters=False)
    before = {name: weight.clone() for name, weight in made.weights.items()}
    oracle_step(pairs, made.weights, made.config, {}, train="all", ref_policy=_separate(tiny, "qwen3"), **OBJECTIVE)
    for name, weight in made.weights.items():
        assert torch.equal(weight, before[name])
        assert weight.grad is None
        assert not weight.requires_grad


def test_a_frozen_policy_that_would_be_trained_is_refused(tiny, pairs) -> None:
    adapted = tiny()
    for frozen in (None, AdaptersOff(), FrozenAdapter(adapted.lora)):
        with pytest.raises(ValueError, match="it would be trained as well; give a separate model or cached log-probs"):
            oracle_step(pairs, adapted.weights, adapted.config, {}, train="all", ref_policy=frozen, **OBJECTIVE)


def test_adapters_and_unknown_names_are_refused(tiny, pairs) -> None:
    made = tiny()
    cached = Cached(
        oracle_step(pairs, made.weights, made.config, made.lora, gradients=False, **OBJECTIVE).ref_per_token_logps
    )
    with pytest.raises(ValueError, match="every weight trained, and adapters on"):
        oracle_step(pairs, made.weights, made.config, made.lora, train="all", ref_policy=cached, **OBJECTIVE)
    with pytest.raises(ValueError, match="train is 'head': expected one of lora, all"):
        oracle_step(pairs, made.weights, made.config, {}, train="head", ref_policy=cached, **OBJECTIVE)
    assert oracle_step(pairs, made.weights, made.config, {}, train="all", ref_policy=cached, **OBJECTIVE).gradients

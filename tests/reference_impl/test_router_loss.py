from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from reference_impl.attention import attention_without
from reference_impl.decoder import decode
from reference_impl.finite_differences import moved, random_direction, random_direction_of, slope_from_gradients
from reference_impl.gradients import leaves
from reference_impl.groups import unpack
from reference_impl.router_loss import load_balancing_loss, once_per_prompt, oracle_router_loss


def loss_of(made, groups, **changes):
    return oracle_router_loss(groups, made.weights, made.config, made.lora, **changes)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_scalars(layers: list[np.ndarray], per_token: int, weights: list[float]) -> float:
    """The definition token by token."""
    num_experts = layers[0].shape[1]
    load, probability, total = np.zeros(num_experts), np.zeros(num_experts), 0.0
    for scores in layers:
        for row, weight in zip(scores, weights, strict=True):
            shares = np.exp(row) / np.exp(row).sum()
            for expert in sorted(range(num_experts), key=lambda e: -shares[e])[:per_token]:
                load[expert] += weight
            probability += weight * shares
            total += weight
    return num_experts * sum(f * p for f, p in zip(load / total, probability / total, strict=True))


@given(data=st.data(), num_tokens=st.integers(1, 6), num_experts=st.integers(1, 5), num_layers=st.integers(1, 3))
def test_the_loss_is_its_definition_token_by_token(data, num_tokens, num_experts, num_layers) -> None:
    per_token = data.draw(st.integers(1, num_experts))
    seed = data.draw(st.integers(0, 10_000))
    layers = [normal(num_tokens, num_experts, seed=seed + layer) for layer in range(num_layers)]
    weights = data.draw(st.lists(st.floats(0.25, 4), min_size=num_tokens, max_size=num_tokens))
    scalars = [layer.numpy() for layer in layers]
    weighted = load_balancing_loss(layers, per_token, torch.tensor(weights, dtype=torch.float64))
    assert float(weighted) == pytest.approx(by_scalars(scalars, per_token, weights), abs=1e-13)
    plain = load_balancing_loss(layers, per_token)
    assert float(plain) == pytest.approx(by_scalars(scalars, per_token, [1.0] * num_tokens), abs=1e-13)


def test_two_tokens_over_two_experts_worked_out_by_hand() -> None:
    """Probabilities (3/4, 1/4) and (2/3, 1/3), both tokens at expert 0: load (1, 0), so 2 * (3/4 + 2/3) / 2."""
    scores = torch.tensor([[3.0, 1.0], [2.0, 1.0]], dtype=torch.float64).log()
    assert float(load_balancing_loss([scores], 1)) == pytest.approx(3 / 4 + 2 / 3, abs=1e-15)
    # The first token three times: 2 * (3 * 3/4 + 2/3) / 4.
    weighted = load_balancing_loss([scores], 1, torch.tensor([3.0, 1.0]))
    assert float(weighted) == pytest.approx((9 / 4 + 2 / 3) / 2, abs=1e-15)


def test_an_even_load_costs_as_much_as_experts_per_token() -> None:
    tilted = torch.eye(4, dtype=torch.float64)
    assert float(load_balancing_loss([tilted], 1)) == pytest.approx(1, abs=1e-15)
    collapsed = torch.tensor([[50.0, 0, 0, 0]], dtype=torch.float64).expand(4, 4)
    assert float(load_balancing_loss([collapsed], 1)) == pytest.approx(4, abs=1e-15)
    # Two layers that favour different experts are even together, not each.
    layers = [torch.tensor([[50.0, 0]], dtype=torch.float64), torch.tensor([[0, 50.0]], dtype=torch.float64)]
    assert float(load_balancing_loss(layers, 1)) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("per_token", [1, 2, 5])
def test_transformers_function_computes_the_same(per_token) -> None:
    """It sums in float32; its mask is a weight of 0 or 1."""
    layers = tuple(normal(12, 5, seed=seed) for seed in range(3))
    expected = load_balancing_loss_func(layers, 5, per_token)
    assert float(load_balancing_loss(layers, per_token)) == pytest.approx(float(expected), rel=1e-6)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
    expected = load_balancing_loss_func(layers, 5, per_token, mask)
    actual = load_balancing_loss(layers, per_token, mask.flatten())
    assert float(actual) == pytest.approx(float(expected), rel=1e-6)
    # With all experts taken there is no load to be uneven.
    assert (abs(float(load_balancing_loss(layers, per_token)) - float(actual)) > 1e-3) == (per_token < 5)


def aux_loss_of_model(model, groups) -> Tensor:
    """Transformers' own, on the unpacked sequences of a batch padded to the right."""
    rows = [sequence.ids for sequence in unpack(groups)]
    width = max(map(len, rows))
    return model(
        input_ids=torch.tensor([[*row, *[0] * (width - len(row))] for row in rows]),
        attention_mask=torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
        output_router_logits=True,
        use_cache=False,
    ).aux_loss


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"num_experts_per_tok": 3, "norm_topk_prob": False},
        {"num_hidden_layers": 3, "mlp_only_layers": [1]},
        {"num_hidden_layers": 3, "decoder_sparse_step": 2},
    ],
)
def test_the_loss_of_a_batch_and_its_gradients_are_those_of_transformers_and_peft(overrides, tiny, many) -> None:
    """Its loss is float32, so that rounding is 1e-7 here."""
    made = tiny("qwen3_moe", **overrides)
    loss = aux_loss_of_model(made.model, many)
    factors = {name: parameter for name, parameter in made.model.named_parameters() if ".lora_" in name}
    found = torch.autograd.grad(loss, list(factors.values()), allow_unused=True, materialize_grads=True)
    short = [name.removeprefix("base_model.model.").removesuffix(".default.weight") for name in factors]
    expected = dict(zip(short, found, strict=True))

    actual = loss_of(made, many)
    assert float(actual.loss) == pytest.approx(float(loss.detach()), rel=1e-6)
    assert actual.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (actual.gradients[name] - gradient).norm() <= 1e-5 * gradient.norm()
    behind = [name for name in expected if name.startswith("lm_head") or "layers.2" in name]
    assert all(expected[name].norm() > 1e-6 for name in expected if name not in behind)


def test_one_sequence_costs_what_it_costs_transformers(tiny, many) -> None:
    made = tiny("qwen3_moe")
    for sequence in unpack(many):
        alone = [
            replace(
                many[0],
                prompt_ids=sequence.prompt_ids,
                positives=(sequence.completion_ids,),
                negatives=(),
                completion_masks=(),
                images=(),
            )
        ]
        actual = loss_of(made, alone, gradients=False).loss
        with torch.no_grad():
            ids = torch.tensor([sequence.ids])
            expected = made.model(input_ids=ids, output_router_logits=True, use_cache=False).aux_loss
        assert float(actual) == pytest.approx(float(expected), rel=1e-6)


def test_the_loss_of_a_batch_is_no_mean_over_its_parts(tiny, many) -> None:
    made = tiny("qwen3_moe")
    parts = [float(loss_of(made, [group], gradients=False).loss) for group in many]
    whole = float(loss_of(made, many, gradients=False).loss)
    tokens = [sum(len(sequence.ids) for sequence in unpack([group])) for group in many]
    by_tokens = sum(part * num for part, num in zip(parts, tokens, strict=True)) / sum(tokens)
    assert abs(whole - by_tokens) > 1e-3


def test_gradients_are_the_slope_of_the_loss(tiny, many) -> None:
    """Between the points of the measurement no token changes its experts: the load does not move."""
    made = tiny("qwen3_moe")
    weights = [normal(len(sequence.ids), seed=place).abs() for place, sequence in enumerate(unpack(many))]
    direction = random_direction(made.lora, torch.Generator().manual_seed(7))
    start = loss_of(made, many, token_weights=weights)

    def loss(steps: int) -> float:
        shifted = replace(made, lora=moved(made.lora, direction, steps * 1e-3))
        found = loss_of(shifted, many, token_weights=weights, gradients=False)
        assert torch.equal(found.load_E, start.load_E)
        return float(found.loss)

    measured = (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * 1e-3)
    assert slope_from_gradients(start.gradients, direction) == pytest.approx(measured, rel=1e-7)
    assert abs(measured) > 1e-4


def test_gradients_of_every_weight_are_the_slope_of_the_loss(tiny, many) -> None:
    made = tiny("qwen3_moe", adapters=False)
    start = oracle_router_loss(many, made.weights, made.config, {}, train="all")
    assert start.gradients.keys() == made.weights.keys()
    assert not start.gradients["lm_head.weight"].any()
    for space in (made.weights, {name: made.weights[name] for name in ("model.layers.0.mlp.gate.weight",)}):
        direction = random_direction_of(space, torch.Generator().manual_seed(7))

        def loss(steps: int, direction=direction) -> float:
            weights = made.weights | {
                name: made.weights[name] + steps * 1e-4 * move for name, move in direction.items()
            }
            found = oracle_router_loss(many, weights, made.config, {}, gradients=False)
            assert torch.equal(found.load_E, start.load_E)
            return float(found.loss)

        measured = (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * 1e-4)
        of_space = {name: start.gradients[name] for name in space}
        assert slope_from_gradients(of_space, direction) == pytest.approx(measured, rel=1e-6)
        assert abs(measured) > 1e-4


def test_one_sequence_at_a_time_is_one_joint_graph(tiny, many) -> None:
    made = tiny("qwen3_moe")
    lora = leaves(made.lora, requires_grad=True)
    decoded = [decode(sequence.ids, made.weights, made.config, lora).router_scores for sequence in unpack(many)]
    joint = load_balancing_loss([torch.cat(layer) for layer in zip(*decoded, strict=True)], 2)
    joint.backward()
    actual = loss_of(made, many)
    assert float(actual.loss) == pytest.approx(float(joint.detach()), abs=1e-14)
    assert float(actual.load_E.sum()) == pytest.approx(2, abs=1e-14)
    assert float(actual.probability_E.sum()) == pytest.approx(1, abs=1e-14)
    for module, factors in lora.items():
        for side in "AB":
            right = getattr(factors, side).grad
            assert (right is None) == (module == "lm_head")
            gradient = actual.gradients[f"{module}.lora_{side}"]
            assert (gradient - (0 if right is None else right)).norm() <= 1e-13 * (1 if right is None else right.norm())


def packed_router_scores(made, group) -> tuple[Tensor, ...]:
    """A group as one row, its prompt once: ``x0 x1 y0 z0 z1`` at the positions 0 1 2 2 3."""
    lengths = [len(group.prompt_ids), *map(len, (*group.positives, *group.negatives))]
    branch = torch.tensor([number for number, length in enumerate(lengths) for _ in range(length)])
    place = torch.cat([torch.arange(length) + (lengths[0] if number else 0) for number, length in enumerate(lengths)])
    stranger = (branch[None, :] != branch[:, None]) & (branch[None, :] != 0)
    excluded = stranger | (place[None, :] > place[:, None])

    def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        assert window is None
        return attention_without(excluded, q, k, v)

    ids = [token for part in (group.prompt_ids, *group.positives, *group.negatives) for token in part]
    return decode(ids, made.weights, made.config, made.lora, positions=place, attend=attend).router_scores


def test_a_packed_row_is_compared_like_with_like(tiny, many) -> None:
    """Prompt tokens weighted five times in the row, or a fifth in each of five copies: one and the same loss each."""
    made, group = tiny("qwen3_moe"), many[0]
    scores = packed_router_scores(made, group)
    num_prompt, num_tokens = len(group.prompt_ids), len(scores[0])
    per_copy = torch.tensor([5.0] * num_prompt + [1.0] * (num_tokens - num_prompt))
    unpacked = loss_of(made, [group], gradients=False).loss
    shared = loss_of(made, [group], token_weights=once_per_prompt([group]), gradients=False).loss
    assert float(load_balancing_loss(scores, 2, per_copy)) == pytest.approx(float(unpacked), abs=1e-13)
    assert float(load_balancing_loss(scores, 2)) == pytest.approx(float(shared), abs=1e-13)
    assert abs(float(unpacked - shared)) > 1e-3


def test_a_prompt_counts_once_over_all_its_copies(many) -> None:
    first, *_, last = once_per_prompt(many)
    assert first.tolist() == [0.2, 0.2, 0.2, 1, 1, 1, 1]
    assert last.tolist() == [0.5, 0.5, 1]
    assert [len(of) for of in once_per_prompt(many)] == [len(sequence.ids) for sequence in unpack(many)]


def test_weights_of_one_are_no_weights_and_their_scale_does_not_matter(tiny, many) -> None:
    made = tiny("qwen3_moe")
    plain = loss_of(made, many)
    threes = loss_of(made, many, token_weights=[torch.full((len(s.ids),), 3) for s in unpack(many)])
    torch.testing.assert_close(threes.loss, plain.loss, rtol=0, atol=1e-14)
    torch.testing.assert_close(dict(threes.gradients), dict(plain.gradients), rtol=0, atol=1e-14)


def test_an_adapter_behind_the_last_router_has_gradient_zero(tiny, many) -> None:
    made = tiny("qwen3_moe")
    head_only = {"lm_head": made.lora["lm_head"]}
    gradients = loss_of(replace(made, lora=head_only), many).gradients
    assert {name: float(gradient.abs().max()) for name, gradient in gradients.items()} == {
        "lm_head.lora_A": 0.0,
        "lm_head.lora_B": 0.0,
    }


def test_a_loss_without_gradients_is_the_same(tiny, many) -> None:
    made = tiny("qwen3_moe")
    without = loss_of(made, many, gradients=False)
    assert without.gradients is None
    with torch.no_grad():
        inside = loss_of(made, many)
    assert torch.equal(inside.loss, without.loss)
    assert not any(t.requires_grad for t in (inside.loss, inside.load_E, inside.probability_E))
    assert inside.gradients["model.layers.0.self_attn.q_proj.lora_A"].norm() > 0


def test_token_weights_that_are_none_are_refused(tiny, pairs) -> None:
    made = tiny("qwen3_moe")
    right = [torch.ones(len(sequence.ids)) for sequence in unpack(pairs)]
    nan = right[1].clone()
    nan[2] = float("nan")
    for weights, message in (
        (right[:-1], "token weights of 3 sequences: the groups have 4"),
        ([right[1], *right[1:]], r"token weights of sequence 0 have shape \(11,\): expected one for each of 9 tokens"),
        ([right[0], nan, *right[2:]], "token weights of sequence 1 have nan among them"),
        ([*right[:3], -right[3]], r"token weights of sequence 3 have -1\.0 among them"),
        ([0 * each for each in right], "token weights are all 0"),
    ):
        with pytest.raises(ValueError, match=message):
            loss_of(made, pairs, token_weights=weights)


def test_what_has_no_router_is_refused(tiny, pairs) -> None:
    made = tiny("qwen3_moe")
    for wrong, groups, message in (
        (tiny(), pairs, "a decoder without experts"),
        (tiny("qwen3_moe", mlp_only_layers=[0, 1]), pairs, "a decoder without experts"),
        (made, [], "no groups"),
        (replace(made, lora={}), pairs, "gradients without LoRA factors"),
        (replace(made, weights={}), pairs, "weights missing"),
    ):
        with pytest.raises(ValueError, match=message):
            loss_of(wrong, groups)


@pytest.mark.parametrize(
    ("layers", "per_token", "weights", "message"),
    [
        ([], 1, None, "router scores of 0 layers"),
        ([torch.zeros(3, 4), torch.zeros(3, 5)], 1, None, "router scores of 2 layers"),
        ([torch.zeros(3)], 1, None, "expected at least one layer"),
        ([torch.zeros(3, 4)], 5, None, "with 5 experts per token"),
        ([torch.zeros(3, 4)], 0, None, "with 0 experts per token"),
        ([torch.zeros(3, 4)], 1, torch.ones(2), r"have shape \(2,\): expected one for each of 3 tokens"),
        ([torch.zeros(3, 4)], 1, torch.zeros(3), "token weights are all 0"),
        ([torch.zeros(3, 4)], 1, torch.tensor([1, 1, float("inf")]), "have inf among them"),
    ],
)
def test_scores_and_weights_that_do_not_fit_are_refused(layers, per_token, weights, message) -> None:
    with pytest.raises(ValueError, match=message):
        load_balancing_loss(layers, per_token, weights)

"""The load balancing loss of packed rows against transformers' own, on the padded batch of unpacked training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from packed_impl.adapters import adapters_off
from packed_impl.layout import LAYOUTS, ROWS, pack
from packed_impl.router_loss import balance, num_completions, router_modules, tapped_routers
from packed_impl.step import dpo_loss, sft_loss

Build = Callable[..., nn.Module]
EXPERTS = {"experts_implementation": "eager", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
COEFFICIENT = 0.7


@pytest.fixture
def moe(tiny_model: Build) -> nn.Module:
    return tiny_model(torch.float64, family="qwen3_moe", targets=("q_proj", "v_proj"), **EXPERTS)


@pytest.fixture
def groups(make_group: Callable[..., Any]) -> list[Any]:
    """Responses begin alike in one group, and two groups have a prompt in common: a prefix tree shares both."""
    return [
        make_group((1, 2, 3, 4, 5), ((6, 7, 8),), ((6, 7, 11, 12),)),
        make_group((9,), ((3, 3), (1,)), ((5, 6, 7),)),
        make_group((1, 2, 3, 4, 5), ((6, 7),), ((2, 2, 2, 2),)),
    ]


def padded(groups: list[Any]) -> tuple[Tensor, Tensor]:
    rows = [group.prompt_ids + ids for group in groups for ids in (*group.positives, *group.negatives)]
    ids, mask = (torch.zeros(len(rows), max(map(len, rows)) + 3, dtype=torch.int64) for _ in range(2))
    for row, (ids_T, mask_T) in zip(rows, zip(ids, mask, strict=True), strict=True):
        ids_T[: len(row)], mask_T[: len(row)] = torch.tensor(row), 1
    return ids, mask


def transformers_step(model: nn.Module, groups: list[Any], beta: float) -> tuple[Tensor, Tensor]:
    """Objective of pairs and auxiliary loss, from transformers' own forward pass over the padded batch."""
    ids, mask = padded(groups)
    output = model(input_ids=ids, attention_mask=mask, output_router_logits=True, use_cache=False)
    with torch.no_grad(), adapters_off(model):
        ref_logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    scores = []
    for logits in (output.logits, ref_logits):
        picked = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        starts = [len(group.prompt_ids) - 1 for group in groups for _ in (*group.positives, *group.negatives)]
        scores.append([row[start : int(m.sum()) - 1].sum() for row, start, m in zip(picked, starts, mask, strict=True)])
    rewards = iter([beta * (policy - ref) for policy, ref in zip(*scores, strict=True)])
    losses = []
    for group in groups:
        positives = [next(rewards) for _ in group.positives]
        negatives = [next(rewards) for _ in group.negatives]
        losses.append(torch.stack([-logsigmoid(p - n) for p in positives for n in negatives]).mean())
    aux = load_balancing_loss_func(output.router_logits, 8, 2, mask)
    torch.testing.assert_close(output.aux_loss, aux, rtol=0, atol=0)
    return torch.stack(losses).mean(), aux


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad]))


@pytest.mark.parametrize("rows", [*ROWS, [[2, 0], [1]]], ids=[*ROWS, "bins"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_loss_and_its_gradients_are_those_of_the_padded_batch(
    moe: nn.Module, groups: list[Any], layout: str, rows: Any
) -> None:
    step = dpo_loss(
        moe, groups, backend="dense-sdpa", layout=layout, rows=rows, beta=0.5, router_aux_loss_coef=COEFFICIENT
    )
    objective, aux = transformers_step(moe, groups, 0.5)
    assert step.router_balance is not None
    # Sums in transformers' function are kept in float32.
    torch.testing.assert_close(step.router_balance.loss, aux, rtol=2e-6, atol=0, check_dtype=False)
    torch.testing.assert_close(step.loss, objective + COEFFICIENT * aux, rtol=2e-6, atol=0, check_dtype=False)
    for actual, expected in zip(gradients(moe, step.loss), gradients(moe, objective + COEFFICIENT * aux), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_the_loss_moves_every_gradient_of_lora_on_attention(moe: nn.Module, groups: list[Any]) -> None:
    without, with_routers = (
        gradients(moe, dpo_loss(moe, groups, backend="split", beta=0.5, router_aux_loss_coef=coef).loss)
        for coef in (0.0, COEFFICIENT)
    )
    assert all(not torch.allclose(one, other, rtol=1e-3) for one, other in zip(without, with_routers, strict=True))


@pytest.mark.parametrize("mean", ["token", "example"])
def test_supervised_examples_have_it_too(moe: nn.Module, groups: list[Any], mean: str) -> None:
    examples = [replace(group, positives=group.positives + group.negatives, negatives=()) for group in groups]
    plain = sft_loss(moe, examples, backend="dense-sdpa", mean=mean)
    step = sft_loss(moe, examples, backend="dense-sdpa", mean=mean, router_aux_loss_coef=COEFFICIENT)
    _, aux = transformers_step(moe, groups, 0.5)
    assert plain.router_balance is None
    torch.testing.assert_close(step.loss - plain.loss, COEFFICIENT * aux, rtol=2e-6, atol=0, check_dtype=False)


def test_the_reference_pass_does_not_count(moe: nn.Module, groups: list[Any]) -> None:
    """Nor is its pass kept: two passes would be twice as many layers."""
    step = dpo_loss(moe, groups, backend="dense-sdpa", beta=0.5, router_aux_loss_coef=COEFFICIENT)
    assert step.router_balance is not None
    assert float(step.router_balance.shares.sum()) == pytest.approx(2, abs=1e-12)
    assert float(step.router_balance.probs.detach().sum()) == pytest.approx(1, abs=1e-6)
    assert not any(router._forward_hooks for router, _ in router_modules(moe))


tokens = st.integers(1, 3)
sequence = st.lists(tokens, min_size=1, max_size=4).map(tuple)


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.tuples(sequence, st.lists(sequence, min_size=1, max_size=3)), min_size=1, max_size=3),
    layout=st.sampled_from(LAYOUTS),
    rows=st.sampled_from(ROWS),
)
def test_a_slot_counts_as_often_as_unpacked_training_feeds_its_token(data: Any, layout: str, rows: str) -> None:
    groups: list[Any] = [
        SimpleNamespace(prompt_ids=prompt, positives=tuple(responses), negatives=(), completion_masks=(), images=())
        for prompt, responses in data
    ]
    packed = pack(groups, layout=layout, rows=rows)
    counts = num_completions(packed)
    fed = [token for prompt, responses in data for response in responses for token in prompt + response]
    for token in (1, 2, 3):
        assert int(counts[packed.input_ids == token].sum()) == fed.count(token)
    assert int(counts.sum()) == len(fed)  # and so no padding


def test_a_prefix_of_another_completion_ends_within_a_segment(make_group: Callable[..., Any]) -> None:
    packed = pack([make_group((1, 2), ((3,), (3, 4)), ((3, 4, 5),))], layout="prefix-tree")
    assert num_completions(packed).tolist() == [[3, 3, 3, 2, 1]]


def test_even_routers_have_the_least_loss_there_is() -> None:
    logits = torch.zeros(8, 4, dtype=torch.float64)
    logits[range(8), [0, 1, 2, 3] * 2] = 1e-9
    assert float(balance([logits], torch.ones(8, dtype=torch.int64), top_k=1).loss) == pytest.approx(1, abs=1e-8)


def test_a_dense_model_is_refused(tiny_model: Build, groups: list[Any]) -> None:
    with pytest.raises(ValueError, match="has no load balancing loss"):
        dpo_loss(tiny_model(), groups, backend="dense-sdpa", beta=0.1, router_aux_loss_coef=0.1)


@pytest.mark.parametrize("coefficient", [-0.1, math.nan, math.inf])
def test_a_coefficient_is_a_finite_number_of_at_least_zero(
    moe: nn.Module, groups: list[Any], coefficient: float
) -> None:
    for step in (
        lambda: dpo_loss(moe, groups, backend="dense-sdpa", beta=0.1, router_aux_loss_coef=coefficient),
        lambda: sft_loss(moe, groups, backend="dense-sdpa", router_aux_loss_coef=coefficient),
    ):
        with pytest.raises(ValueError, match="router_aux_loss_coef is"):
            step()


def test_reentrant_checkpointing_is_refused_and_the_other_is_not(moe: nn.Module) -> None:
    moe.train()
    base: Any = moe.get_base_model()  # type: ignore[operator]
    enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
    enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="use_reentrant"), tapped_routers(moe):
        pass
    enable({"use_reentrant": False})
    with tapped_routers(moe):
        pass

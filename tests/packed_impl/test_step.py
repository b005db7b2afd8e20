from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from packed_impl.adapters import adapters_off
from packed_impl.attention import BACKENDS, attention_implementation
from packed_impl.forest import Forest
from packed_impl.forward import layout_logps
from packed_impl.layout import LAYOUTS, ROWS, pack
from packed_impl.step import dpo_loss, per_token_logps, sft_loss

Build = Callable[..., nn.Module]
Unpacked = Callable[..., list[Tensor]]
Gradients = Callable[..., dict[str, Tensor]]

WITH_GRADIENTS = tuple(backend for backend in BACKENDS if backend != "flex")
# Rounding of the models themselves: transformers computes norms, rotary angles and eager softmax in float32 always.
# A wrong mask, position or predictor moves these log-probs by 0.1 to 5 (see the planted faults below).
LOGP_TOLERANCE = {torch.float32: 2e-5, torch.float64: 2e-6}
GRADIENT_TOLERANCE = {torch.float32: 5e-5, torch.float64: 5e-6}


def worst(actual: list[Tensor], expected: list[Tensor]) -> float:
    assert [x.shape for x in actual] == [x.shape for x in expected]
    return max((a - e).abs().max().item() for a, e in zip(actual, expected, strict=True))


def worst_gradient(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest relative L2 error over the LoRA tensors, none of which may be zero."""
    assert actual.keys() == expected.keys()
    assert all(gradient.norm() > 0 for gradient in expected.values())
    return max(((actual[name] - expected[name]).norm() / expected[name].norm()).item() for name in expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", WITH_GRADIENTS)
def test_log_probs_and_gradients_are_those_of_the_unpacked_model(
    tiny_model: Build,
    unpacked_logps: Unpacked,
    trained_gradients: Gradients,
    pair_and_group: list[Any],
    backend: str,
    layout: str,
    rows: str,
    dtype: torch.dtype,
) -> None:
    model = tiny_model(dtype)
    actual = per_token_logps(model, pair_and_group, backend=backend, layout=layout, rows=rows)
    expected = unpacked_logps(model, pair_and_group)
    assert all(logps.dtype == dtype for logps in actual)
    assert worst(actual, expected) < LOGP_TOLERANCE[dtype]
    gradients = trained_gradients(model, actual)
    assert worst_gradient(gradients, trained_gradients(model, expected)) < GRADIENT_TOLERANCE[dtype]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_flex_log_probs_are_those_of_the_unpacked_model(
    tiny_model: Build, unpacked_logps: Unpacked, pair_and_group: list[Any], layout: str, rows: str
) -> None:
    model = tiny_model()
    with torch.no_grad():
        actual = per_token_logps(model, pair_and_group, backend="flex", layout=layout, rows=rows)
        assert worst(actual, unpacked_logps(model, pair_and_group)) < LOGP_TOLERANCE[torch.float32]


def test_flex_crosses_block_borders(tiny_model: Build, unpacked_logps: Unpacked) -> None:
    def ids(start: int, length: int) -> tuple[int, ...]:
        return tuple((start + 7 * i) % 61 for i in range(length))

    groups = [
        SimpleNamespace(
            prompt_ids=ids(1, 129), positives=(ids(2, 127),), negatives=(ids(3, 128),), completion_masks=(), images=()
        )
    ]
    model = tiny_model()
    with torch.no_grad():
        actual = per_token_logps(model, groups, backend="flex")
        assert worst(actual, unpacked_logps(model, groups)) < 2 * LOGP_TOLERANCE[torch.float32]


def groups_over(token_ids: st.SearchStrategy[int]) -> st.SearchStrategy[list[Any]]:
    def responses(at_least: int) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
        response = st.lists(token_ids, min_size=1, max_size=4).map(tuple)
        return st.lists(response, min_size=at_least, max_size=2).map(tuple)

    group = st.builds(
        SimpleNamespace,
        prompt_ids=st.lists(token_ids, min_size=1, max_size=6).map(tuple),
        positives=responses(1),
        negatives=responses(0),
        completion_masks=st.just(()),
        images=st.just(()),
    )
    return st.lists(group, min_size=1, max_size=3)


# Of two tokens only, sequences share prefixes, begin one another, or are equal.
any_groups = groups_over(st.integers(0, 60)) | groups_over(st.integers(1, 2))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_groups, st.sampled_from(WITH_GRADIENTS), st.sampled_from(LAYOUTS), st.sampled_from(ROWS))
def test_any_groups_have_the_log_probs_of_the_unpacked_model(
    tiny_model: Build, unpacked_logps: Unpacked, groups: list[Any], backend: str, layout: str, rows: str
) -> None:
    model = tiny_model()
    with torch.no_grad():
        actual = per_token_logps(model, groups, backend=backend, layout=layout, rows=rows)
        assert worst(actual, unpacked_logps(model, groups)) < LOGP_TOLERANCE[torch.float32]


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_families_agree_too(
    tiny_model: Build, unpacked_logps: Unpacked, pair_and_group: list[Any], backend: str, family: str
) -> None:
    model = tiny_model(family=family)
    with torch.no_grad():
        actual = per_token_logps(model, pair_and_group, backend=backend)
        assert worst(actual, unpacked_logps(model, pair_and_group)) < LOGP_TOLERANCE[torch.float32]


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_runs_and_stays_close(
    tiny_model: Build, unpacked_logps: Unpacked, pair_and_group: list[Any], backend: str
) -> None:
    model = tiny_model(torch.bfloat16)
    with torch.no_grad():
        actual = torch.cat(per_token_logps(model, pair_and_group, backend=backend))
        expected = torch.cat(unpacked_logps(model, pair_and_group))
    assert actual.dtype == torch.float32
    assert actual.isfinite().all()
    assert (actual - expected).square().mean().sqrt() < 0.2


FAULTS: dict[str, Callable[[Any], Any]] = {
    "positions count along the row": lambda layout: replace(
        layout, position_ids=torch.arange(layout.input_ids.shape[1]).expand_as(layout.input_ids)
    ),
    "one causal row": lambda layout: replace(layout, forests=(Forest.of([layout.input_ids.shape[1]], [None]),)),
    "branches do not see the prompt": lambda layout: replace(
        layout,
        forests=tuple(Forest.of([s.length for s in f.segments], [None] * len(f.segments)) for f in layout.forests),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_planted_layout_fault_is_far_outside_the_tolerance(
    tiny_model: Build, unpacked_logps: Unpacked, pair_and_group: list[Any], backend: str, fault: str
) -> None:
    model = tiny_model()
    with torch.no_grad():
        actual = layout_logps(model, FAULTS[fault](pack(pair_and_group)), backend=backend)
        assert worst(actual, unpacked_logps(model, pair_and_group)) > 1000 * LOGP_TOLERANCE[torch.float32]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_rejected_tokens_do_not_see_chosen_tokens(tiny_model: Build, backend: str, layout: str) -> None:
    model = tiny_model()
    pair = SimpleNamespace(
        prompt_ids=(1, 2, 3), positives=((4, 5, 6),), negatives=((7, 8),), completion_masks=(), images=()
    )
    rewritten = SimpleNamespace(
        prompt_ids=(1, 2, 3), positives=((44, 55, 56),), negatives=((7, 8),), completion_masks=(), images=()
    )
    with torch.no_grad():
        chosen, rejected = per_token_logps(model, [pair], backend=backend, layout=layout)
        other_chosen, same_rejected = per_token_logps(model, [rewritten], backend=backend, layout=layout)
    assert torch.equal(rejected, same_rejected)
    assert not torch.equal(chosen, other_chosen)


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_in_one_row_do_not_see_each_other(tiny_model: Build, backend: str) -> None:
    model = tiny_model()
    kept = SimpleNamespace(prompt_ids=(9, 8), positives=((7, 6),), negatives=((5,),), completion_masks=(), images=())
    before = SimpleNamespace(
        prompt_ids=(1, 2, 3), positives=((4, 5),), negatives=((6,),), completion_masks=(), images=()
    )
    after = SimpleNamespace(
        prompt_ids=(31, 32, 33), positives=((34, 35),), negatives=((36,),), completion_masks=(), images=()
    )
    with torch.no_grad():
        first = per_token_logps(model, [before, kept], backend=backend)
        second = per_token_logps(model, [after, kept], backend=backend)
    assert all(torch.equal(x, y) for x, y in zip(first[2:], second[2:], strict=True))
    assert not any(torch.equal(x, y) for x, y in zip(first[:2], second[:2], strict=True))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("backend", WITH_GRADIENTS)
def test_the_dpo_loss_is_that_of_the_unpacked_model(
    tiny_model: Build, unpacked_logps: Unpacked, trained_gradients: Gradients, backend: str, rows: str
) -> None:
    model = tiny_model(torch.float64)
    pairs = [
        SimpleNamespace(
            prompt_ids=(1, 2, 3), positives=((4, 5),), negatives=((6, 7, 8),), completion_masks=(), images=()
        ),
        SimpleNamespace(prompt_ids=(9,), positives=((3,),), negatives=((2, 1),), completion_masks=(), images=()),
    ]
    result = dpo_loss(model, pairs, backend=backend, rows=rows, beta=0.1, label_smoothing=0.2, logit_chunk=4)
    policy = unpacked_logps(model, pairs)
    with torch.no_grad(), model.disable_adapter():
        ref = unpacked_logps(model, pairs)
    rewards = [0.1 * (p.sum() - r.sum()).item() for p, r in zip(policy, ref, strict=True)]
    margins = [rewards[0] - rewards[1], rewards[2] - rewards[3]]
    losses = [0.8 * math.log1p(math.exp(-z)) + 0.2 * math.log1p(math.exp(z)) for z in margins]
    assert result.loss.item() == pytest.approx(sum(losses) / 2, abs=1e-6)
    assert result.rewards.tolist() == pytest.approx(rewards, abs=2e-6)
    assert result.margins.tolist() == pytest.approx(margins, abs=2e-6)
    assert worst(result.per_token_logps, policy) < LOGP_TOLERANCE[torch.float64]
    assert worst(result.ref_per_token_logps, ref) < LOGP_TOLERANCE[torch.float64]
    assert not any(logps.requires_grad for logps in result.ref_per_token_logps)
    assert all(abs(margin) > 1e-3 for margin in margins)
    # d loss / d z = e sigma(z) - (1 - e) sigma(-z); the rest is the gradient of the summed log-probs.
    slopes = [0.2 / (1 + math.exp(-z)) - 0.8 / (1 + math.exp(z)) for z in margins]
    weighted = sum(s * (policy[2 * i].sum() - policy[2 * i + 1].sum()) for i, s in enumerate(slopes)) * 0.1 / 2
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    expected = dict(zip(named, torch.autograd.grad(weighted, list(named.values())), strict=True))
    actual = dict(zip(named, torch.autograd.grad(result.loss, list(named.values())), strict=True))
    assert worst_gradient(actual, expected) < GRADIENT_TOLERANCE[torch.float64]


def test_dpo_needs_a_negative(tiny_model: Build, pair_and_group: list[Any]) -> None:
    with pytest.raises(ValueError, match="group 1 has no negative response: sigmoid needs one at least"):
        dpo_loss(tiny_model(), [pair_and_group[0], replace(pair_and_group[1], negatives=())], backend="split", beta=0.1)


def test_dpo_needs_an_adapter_to_switch_off(tiny_model: Build, pair_and_group: list[Any]) -> None:
    with pytest.raises(ValueError, match="has no adapter that is on"):
        dpo_loss(tiny_model().unload(), pair_and_group[:1], backend="split", beta=0.1)


def test_adapters_are_after_the_frozen_policy_as_they_were_before(tiny_model: Build) -> None:
    model = tiny_model()
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    layers[0].enable_adapters(False)
    model.train()
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    with adapters_off(model):
        assert all(layer.disable_adapters for layer in layers)
        assert not torch.is_grad_enabled()
    with suppress(KeyError), adapters_off(model):
        raise KeyError
    assert [layer.disable_adapters for layer in layers] == [True, *(False for _ in layers[1:])]
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before
    assert torch.is_grad_enabled()


def test_a_model_without_an_adapter_has_log_probs(
    tiny_model: Build, unpacked_logps: Unpacked, pair_and_group: list[Any]
) -> None:
    model = tiny_model().unload()
    actual = per_token_logps(model, pair_and_group, backend="split")
    assert worst(actual, unpacked_logps(model, pair_and_group)) < LOGP_TOLERANCE[torch.float32]


def test_flex_gradients_on_a_cpu_are_refused(tiny_model: Build, pair_and_group: list[Any]) -> None:
    with pytest.raises(ValueError, match="FlexAttention has no backward pass on cpu"):
        per_token_logps(tiny_model(), pair_and_group, backend="flex")


def test_unknown_choices_are_refused_before_anything_runs(tiny_model: Build, pair_and_group: list[Any]) -> None:
    with pytest.raises(ValueError, match="unknown attention backend 'paged'"):
        per_token_logps(tiny_model(), pair_and_group, backend="paged")


@pytest.fixture
def checkpointed(tiny_model: Build) -> nn.Module:
    model = tiny_model(torch.float64).train()
    base = model.get_base_model()
    enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    return model


@pytest.mark.parametrize("backend", ["dense-eager", "split"])
def test_gradient_checkpointing_is_refused_where_it_would_recompute_another_attention(
    checkpointed: nn.Module, pair_and_group: list[Any], backend: str
) -> None:
    with pytest.raises(ValueError, match="enter attention_implementation"):
        per_token_logps(checkpointed, pair_and_group, backend=backend)
    with pytest.raises(ValueError, match="enter attention_implementation"):
        dpo_loss(checkpointed, pair_and_group, backend=backend, beta=0.1)


@pytest.mark.parametrize("backend", WITH_GRADIENTS)
def test_gradient_checkpointing_works_within_an_outer_context(
    checkpointed: nn.Module,
    unpacked_logps: Unpacked,
    trained_gradients: Gradients,
    pair_and_group: list[Any],
    backend: str,
) -> None:
    with attention_implementation(checkpointed, backend):
        actual = trained_gradients(checkpointed, per_token_logps(checkpointed, pair_and_group, backend=backend))
    expected = trained_gradients(checkpointed, unpacked_logps(checkpointed, pair_and_group))
    assert worst_gradient(actual, expected) < GRADIENT_TOLERANCE[torch.float64]


@pytest.mark.parametrize("backend", WITH_GRADIENTS)
@pytest.mark.parametrize("layout", ["shared-prompt", "prefix-tree"])
def test_the_dpo_loss_of_groups_sums_supervised_tokens_over_all_pairs(
    tiny_model: Build, unpacked_logps: Unpacked, make_group: Any, backend: str, layout: str
) -> None:
    model = tiny_model(torch.float64)
    masks = ((True, False, True), (True, True), (False, True), (True,), (True,))
    groups = [
        make_group((1, 2), ((3, 4, 5), (3, 4)), ((3, 6), (7,), (8,)), masks),
        make_group((1, 2), ((9,),), ((3, 4, 1),)),
    ]
    result = dpo_loss(model, groups, backend=backend, layout=layout, rows="one-row", beta=0.3)
    policy = unpacked_logps(model, groups)
    with torch.no_grad(), model.disable_adapter():
        ref = unpacked_logps(model, groups)
    counted = [torch.tensor(mask) for mask in (*masks, (True,), (True, True, True))]
    rewards = [0.3 * (p[m].sum() - r[m].sum()) for p, r, m in zip(policy, ref, counted, strict=True)]
    margins = [rewards[i] - rewards[j] for i in (0, 1) for j in (2, 3, 4)] + [rewards[5] - rewards[6]]
    losses = [torch.log1p(torch.exp(-z)) for z in margins]
    expected = (sum(losses[:6]) / 6 + losses[6]) / 2
    assert result.loss.item() == pytest.approx(expected.item(), abs=2e-6)
    assert result.rewards.tolist() == pytest.approx([reward.item() for reward in rewards], abs=5e-6)
    assert result.margins.tolist() == pytest.approx([margin.item() for margin in margins], abs=5e-6)
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    of_unpacked = dict(zip(named, torch.autograd.grad(expected, list(named.values())), strict=True))
    of_packed = dict(zip(named, torch.autograd.grad(result.loss, list(named.values())), strict=True))
    assert worst_gradient(of_packed, of_unpacked) < GRADIENT_TOLERANCE[torch.float64]


@pytest.mark.parametrize("mean", ["token", "example"])
@pytest.mark.parametrize("layout", ["block-diagonal", "prefix-tree"])
def test_the_sft_loss_is_that_of_the_unpacked_model(
    tiny_model: Build, unpacked_logps: Unpacked, make_group: Any, layout: str, mean: str
) -> None:
    """Two rollouts of one prompt, and a conversation with a user turn between two supervised ones."""
    model = tiny_model(torch.float64)
    passes: list[str] = []
    counted = model.register_forward_hook(lambda *_: passes.append("policy"))
    groups = [
        make_group((1, 2), ((3, 4, 5), (3,))),
        make_group((6,), ((7, 8, 9, 3),), (), ((True, False, False, True),)),
    ]
    result = sft_loss(model, groups, backend="split", layout=layout, rows=[(1, 0)], mean=mean, logit_chunk=3)
    counted.remove()
    assert passes == ["policy"]  # no frozen policy takes part
    first, second, third = unpacked_logps(model, groups)
    third = third[[0, 3]]
    by_token = -(first.sum() + second.sum() + third.sum()) / 6
    by_example = -(first.mean() + second.mean() + third.mean()) / 3
    assert abs(by_token - by_example) > 1e-2
    expected = by_token if mean == "token" else by_example
    assert result.loss.item() == pytest.approx(expected.item(), abs=2e-6)
    assert result.num_supervised == 6
    assert [len(logps) for logps in result.per_token_logps] == [3, 1, 4]
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    of_unpacked = dict(zip(named, torch.autograd.grad(expected, list(named.values())), strict=True))
    of_packed = dict(zip(named, torch.autograd.grad(result.loss, list(named.values())), strict=True))
    assert worst_gradient(of_packed, of_unpacked) < GRADIENT_TOLERANCE[torch.float64]


def test_sft_takes_no_negatives_and_one_of_two_means(tiny_model: Build, pair_and_group: list[Any]) -> None:
    with pytest.raises(ValueError, match="group 0 has 1 negative responses: an SFT example has positives only"):
        sft_loss(tiny_model(), pair_and_group, backend="split")
    with pytest.raises(ValueError, match="unknown mean 'batch': expected one of token, example"):
        sft_loss(tiny_model(), pair_and_group, backend="split", mean="batch")


OBJECTIVES_OF_MEANS = ("ipo", "groupdpo-margin", "groupdpo-mpo", "groupdpo-softmax", "groupdpo-all-pairs")


@pytest.mark.parametrize("objective", ["rpo", *OBJECTIVES_OF_MEANS])
def test_scores_of_other_objectives_take_supervised_tokens_only(
    tiny_model: Build, unpacked_logps: Unpacked, make_group: Any, objective: str
) -> None:
    """Rewards are sums or means by the objective, and a loss of the default NLL weight is that much larger."""
    model = tiny_model(torch.float64)
    masks = ((True, False, True), (False, True, True), (True, True))
    groups = [make_group((1, 2), ((3, 4, 5),), ((3, 6, 9), (7, 8)), masks), make_group((9,), ((4,), (5, 6)), ((7,),))]
    result = dpo_loss(model, groups, backend="split", beta=0.3, objective=objective)
    without = dpo_loss(model, groups, backend="split", beta=0.3, objective=objective, nll_weight=0)
    counted = [torch.tensor(mask) for mask in (*masks, (True,), (True, True), (True,))]
    policy = [logps[mask] for logps, mask in zip(unpacked_logps(model, groups), counted, strict=True)]
    with torch.no_grad(), model.disable_adapter():
        ref = [logps[mask] for logps, mask in zip(unpacked_logps(model, groups), counted, strict=True)]
    score = Tensor.mean if objective in OBJECTIVES_OF_MEANS else Tensor.sum
    rewards = [0.3 * (score(p) - score(r)).item() for p, r in zip(policy, ref, strict=True)]
    assert result.rewards.tolist() == pytest.approx(rewards, abs=5e-6)
    nll = -(policy[0].mean() + (policy[3].mean() + policy[4].mean()) / 2).item() / 2
    expected = 0 if objective == "ipo" else nll
    assert (result.loss - without.loss).item() == pytest.approx(expected, abs=2e-6)


def test_an_objective_is_refused_before_anything_runs(tiny_model: Build, pair_and_group: list[Any]) -> None:
    model = tiny_model()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match="unknown preference objective 'kto': expected one of sigmoid, "):
        dpo_loss(model, pair_and_group, backend="split", beta=0.1, objective="kto")
    with pytest.raises(ValueError, match=r"label_smoothing is 0\.1: hinge has none"):
        dpo_loss(model, pair_and_group, backend="split", beta=0.1, objective="hinge", label_smoothing=0.1)

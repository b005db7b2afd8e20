from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from packed_impl.adapters import frozen_adapter
from packed_impl.attention import BACKENDS, pretrained_model
from packed_impl.layout import LAYOUTS
from packed_impl.reference_cache import build_cache
from packed_impl.reference_policy import (
    ADAPTERS_OFF,
    REFERENCE_POLICIES,
    AdaptersOff,
    CachedLogps,
    FrozenAdapter,
    ReferencePolicy,
    SeparateModel,
)
from packed_impl.step import dpo_loss
from packed_impl.two_pass import two_pass_step

Build = Callable[..., nn.Module]
Unpacked = Callable[..., list[Tensor]]

LOGP_TOLERANCE = 2e-6  # float64; transformers computes norms, rotary angles and eager softmax in float32 always
GRADIENT_TOLERANCE = 5e-6


@pytest.fixture
def with_initial(tiny_model: Build) -> Build:
    """A policy with a second adapter, "initial", that is in other layers and that nobody trains."""

    def build() -> nn.Module:
        model = tiny_model(torch.float64, targets=("q_proj", "v_proj", "down_proj", "lm_head"))
        initial = LoraConfig(r=2, target_modules=["q_proj", "o_proj", "up_proj"], modules_to_save=["embed_tokens"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers deprecates
            model.add_adapter("initial", initial)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".initial." in name and parameter.ndim > 1:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        return model.to(torch.float64).eval()

    return build


def of_adapter(unpacked_logps: Unpacked, model: nn.Module, groups: Sequence[Any], name: str) -> list[Tensor]:
    """One sequence at a time, by PEFT's own switch, on a copy."""
    other = copy.deepcopy(model)
    other.set_adapter(name)
    with torch.no_grad():
        return unpacked_logps(other, groups)


def worst(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    assert [x.shape for x in actual] == [x.shape for x in expected]
    return max((a - e).abs().max().item() for a, e in zip(actual, expected, strict=True))


def adapter_state(model: nn.Module) -> list[object]:
    layers = [m for m in model.modules() if isinstance(m, (BaseTunerLayer, AuxiliaryTrainingWrapper))]
    return [(layer.active_adapters, layer.disable_adapters) for layer in layers] + [
        (name, parameter.requires_grad) for name, parameter in model.named_parameters()
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_frozen_adapter_has_the_log_probs_of_its_own_unpacked_pass(
    with_initial: Build, unpacked_logps: Unpacked, pair_and_group: list[Any], backend: str, layout: str
) -> None:
    model = with_initial()
    expected = of_adapter(unpacked_logps, model, pair_and_group, "initial")
    with torch.no_grad():
        result = dpo_loss(
            model, pair_and_group, backend=backend, layout=layout, beta=0.1, reference=FrozenAdapter("initial")
        )
        policy = unpacked_logps(model, pair_and_group)
        with model.disable_adapter():
            base = unpacked_logps(model, pair_and_group)
    assert worst(result.ref_per_token_logps, expected) < LOGP_TOLERANCE
    assert worst(result.per_token_logps, policy) < LOGP_TOLERANCE
    # The three policies are far apart, so that one in place of another would be noticed.
    assert min(worst(expected, policy), worst(expected, base), worst(policy, base)) > 1


def test_only_the_policy_gets_gradients(
    with_initial: Build, unpacked_logps: Unpacked, pair_and_group: list[Any]
) -> None:
    model, pair = with_initial(), pair_and_group[:1]
    result = dpo_loss(model, pair, backend="split", beta=0.4, reference=FrozenAdapter("initial"))
    result.loss.backward()
    chosen, rejected = (logps.sum() for logps in unpacked_logps(model, pair))
    ref_chosen, ref_rejected = (logps.sum() for logps in of_adapter(unpacked_logps, model, pair, "initial"))
    margin = 0.4 * (chosen - ref_chosen - rejected + ref_rejected)
    assert result.margins.item() == pytest.approx(margin.item(), abs=5e-6)
    assert result.loss.item() == pytest.approx(math.log1p(math.exp(-margin.item())), abs=5e-6)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    expected = torch.autograd.grad(-nn.functional.logsigmoid(margin), list(trained.values()))
    for parameter, gradient in zip(trained.values(), expected, strict=True):
        assert (parameter.grad - gradient).norm() / gradient.norm() < GRADIENT_TOLERANCE
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(trained)
    assert all(".default." in name for name in trained)


@pytest.mark.parametrize("reference", [AdaptersOff(), FrozenAdapter("initial")], ids=lambda each: each.name)
def test_a_step_leaves_adapters_and_requires_grad_as_they_were(
    with_initial: Build, pair_and_group: list[Any], reference: ReferencePolicy
) -> None:
    model = with_initial()
    next(p for name, p in model.named_parameters() if ".default." in name).requires_grad_(False)
    before = adapter_state(model)
    dpo_loss(model, pair_and_group, backend="split", beta=0.1, reference=reference)
    assert adapter_state(model) == before
    hook = pretrained_model(model).model.norm.register_forward_hook(lambda *_: pytest.fail("say"))
    with pytest.raises(pytest.fail.Exception, match="say"):
        dpo_loss(model, pair_and_group, backend="split", beta=0.1, reference=reference)
    hook.remove()
    assert adapter_state(model) == before
    assert torch.is_grad_enabled()


def test_a_graph_from_before_survives_the_frozen_adapter(with_initial: Build, pair_and_group: list[Any]) -> None:
    """Two losses of one backward pass: the frozen policy of the second runs while the graph of the first is alive."""
    model = with_initial()

    def loss(group: Any) -> Tensor:
        return dpo_loss(model, [group], backend="split", beta=0.1, reference=FrozenAdapter("initial")).loss

    trained = [p for p in model.parameters() if p.requires_grad]
    together = torch.autograd.grad(sum(map(loss, pair_and_group)), trained)
    apart = [torch.autograd.grad(loss(group), trained) for group in pair_and_group]
    for gradient, first, second in zip(together, *apart, strict=True):
        assert torch.allclose(gradient, first + second, rtol=1e-9)


def test_a_frozen_adapter_that_is_not_frozen_is_refused(with_initial: Build, pair_and_group: list[Any]) -> None:
    model = with_initial()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))

    def step(name: str) -> None:
        dpo_loss(model, pair_and_group, backend="split", beta=0.1, reference=FrozenAdapter(name))

    with pytest.raises(ValueError, match=r"'first'.* no such adapter; its adapters: default, initial"):
        step("first")
    with pytest.raises(ValueError, match="'default' is active, so it is the policy itself"):
        step("default")
    copied = next(p for name, p in model.named_parameters() if "modules_to_save.initial" in name)
    copied.requires_grad_(True)
    with pytest.raises(ValueError, match="'initial' has parameters that require gradients"):
        step("initial")
    copied.requires_grad_(False)
    model.base_model.disable_adapter_layers()
    with pytest.raises(ValueError, match="'initial' is in layers whose adapters are switched off"):
        step("initial")


def test_merged_weights_are_refused(with_initial: Build) -> None:
    model = with_initial()
    model.merge_adapter()
    with pytest.raises(ValueError, match="an adapter is merged into the weights"), frozen_adapter(model, "initial"):
        pass


def test_a_model_without_adapters_has_no_frozen_one(tiny_model: Build, pair_and_group: list[Any]) -> None:
    with pytest.raises(ValueError, match="no such adapter; its adapters: none"):
        dpo_loss(tiny_model().unload(), pair_and_group, backend="split", beta=0.1, reference=FrozenAdapter("initial"))


@pytest.fixture
def separate(tiny_model: Build) -> nn.Module:
    return tiny_model(torch.float64, seed=5, num_hidden_layers=1).unload().requires_grad_(False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_separate_model_serves_full_fine_tuning(
    tiny_model: Build, separate: nn.Module, unpacked_logps: Unpacked, pair_and_group: list[Any], backend: str
) -> None:
    model = tiny_model(torch.float64).unload()
    with torch.no_grad():
        result = dpo_loss(model, pair_and_group, backend=backend, beta=0.1, reference=SeparateModel(separate))
        assert worst(result.ref_per_token_logps, unpacked_logps(separate, pair_and_group)) < LOGP_TOLERANCE
        assert worst(result.per_token_logps, unpacked_logps(model, pair_and_group)) < LOGP_TOLERANCE
    assert pretrained_model(separate).config._attn_implementation == "sdpa"


def test_a_separate_model_that_is_not_one_is_refused(
    tiny_model: Build, separate: nn.Module, pair_and_group: list[Any]
) -> None:
    model = tiny_model(torch.float64)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))

    def step(other: nn.Module) -> None:
        dpo_loss(model, pair_and_group, backend="split", beta=0.1, reference=SeparateModel(other))

    with pytest.raises(ValueError, match="is the policy itself"):
        step(model.get_base_model())
    with pytest.raises(ValueError, match="is in training mode"):
        step(copy.deepcopy(separate).train())
    with pytest.raises(ValueError, match="has parameters that require gradients"):
        step(copy.deepcopy(separate).requires_grad_(True))
    with pytest.raises(ValueError, match="has a vocabulary of 67, the policy one of 61"):
        step(tiny_model(torch.float64, vocab_size=67).unload().requires_grad_(False))


@pytest.fixture
def every_reference(separate: nn.Module) -> Callable[[nn.Module, Sequence[Any]], dict[str, ReferencePolicy]]:
    def of(model: nn.Module, groups: Sequence[Any]) -> dict[str, ReferencePolicy]:
        cache = build_cache(model, groups, reference=FrozenAdapter("initial"), backend="dense-sdpa")
        made = (ADAPTERS_OFF, FrozenAdapter("initial"), SeparateModel(separate), CachedLogps(cache))
        return {reference.name: reference for reference in made}

    return of


def test_every_reference_policy_has_its_name(
    with_initial: Build, every_reference: Callable[..., dict[str, ReferencePolicy]], pair_and_group: list[Any]
) -> None:
    assert tuple(every_reference(with_initial(), pair_and_group)) == REFERENCE_POLICIES


@pytest.mark.parametrize("reference", REFERENCE_POLICIES)
def test_the_two_pass_step_holds_the_policy_against_the_same_reference(
    with_initial: Build,
    every_reference: Callable[..., dict[str, ReferencePolicy]],
    make_group: Any,
    reference: str,
) -> None:
    """The second group shares a response with the first, and supervises one of which the first counts all."""
    model = with_initial()
    groups = [
        make_group((1, 2), ((3, 4), (5,)), ((6, 7, 8),)),
        make_group((1, 2), ((6, 7, 8),), ((3, 4), (9,)), ((True,) * 3, (False, True), (True,))),
    ]
    chosen = every_reference(model, groups)[reference]
    options = {"backend": "split", "beta": 0.4, "objective": "groupdpo-mpo", "reference": chosen}
    expected = dpo_loss(model, groups, **options)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(expected.loss, trained)
    actual = two_pass_step(model, groups, branches_per_micro_batch=2, **options)
    assert actual.loss.item() == pytest.approx(expected.loss.item(), abs=2e-6)
    assert actual.rewards.tolist() == pytest.approx(expected.rewards.tolist(), abs=5e-6)
    for parameter, gradient in zip(trained, gradients, strict=True):
        assert (parameter.grad - gradient).norm() / gradient.norm() < GRADIENT_TOLERANCE

"""The kinds of frozen policy, each against transformers and peft and against another way of saying the same."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig
from torch import Tensor

from reference_impl import ref_policy as ref_policy_module
from reference_impl.finite_differences import random_direction, slope_from_gradients, slope_from_losses
from reference_impl.logps import completion_logps
from reference_impl.lora import LoraFactors
from reference_impl.ref_policy import AdaptersOff, Cached, FrozenAdapter, SeparateModel
from reference_impl.step import oracle_step

BETA = 0.4
Q_PROJ = "model.layers.0.self_attn.q_proj"


def step_of(made, groups, ref_policy=None, **changes):
    arguments = {"beta": BETA, "label_smoothing": 0.1, "ref_policy": ref_policy, **changes}
    return oracle_step(groups, made.weights, made.config, made.lora, **arguments)


def same(actual, expected, atol: float = 0.0) -> None:
    """Every value and gradient of two steps agrees."""
    for field in ("per_token_logps", "ref_per_token_logps"):
        torch.testing.assert_close(list(getattr(actual, field)), list(getattr(expected, field)), rtol=0, atol=atol)
    for field in ("loss", "rewards", "margins"):
        torch.testing.assert_close(getattr(actual, field), getattr(expected, field), rtol=0, atol=atol)
    torch.testing.assert_close(dict(actual.gradients), dict(expected.gradients), rtol=atol, atol=atol)


def other_factors(lora, seed: int = 5):
    generator = torch.Generator().manual_seed(seed)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64) * 0.2

    return {module: LoraFactors(draw(f.A), draw(f.B), scaling=1.5) for module, f in lora.items()}


def other_model(tiny, **sizes):
    return tiny(adapters=False, seed=9, **sizes)


def merged(weights, lora):
    """``W + s B A`` written into the weights."""
    changes = {f"{name}.weight": weights[f"{name}.weight"] + f.scaling * f.B @ f.A for name, f in lora.items()}
    return {**weights, **changes}


def model_logps(model, groups) -> list[Tensor]:
    found = []
    for group in groups:
        for completion in (*group.positives, *group.negatives):
            ids = torch.tensor([[*group.prompt_ids, *completion]])
            with torch.no_grad():
                logps = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
            found.append(torch.stack([logps[len(group.prompt_ids) - 1 + t, y] for t, y in enumerate(completion)]))
    return found


def test_the_frozen_policy_of_old_is_the_one_with_adapters_off(tiny, many) -> None:
    made = tiny()
    same(step_of(made, many, AdaptersOff()), step_of(made, many))


def test_a_frozen_adapter_is_a_second_adapter_of_peft(tiny, many, float64_throughout) -> None:
    made = tiny()
    frozen = other_factors(made.lora)
    targets = sorted({module.rsplit(".", 1)[-1] for module in frozen})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        made.model.add_adapter("ref", LoraConfig(r=3, lora_alpha=4.5, target_modules=targets))
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if ".ref." in name:
                module, side = name.removeprefix("base_model.model.").split(".lora_")
                parameter.data = getattr(frozen[module], side[0]).clone()
    made.model.set_adapter("ref")
    expected = model_logps(float64_throughout(made.model.double().eval()), many)
    step = step_of(made, many, FrozenAdapter(frozen), gradients=False)
    torch.testing.assert_close(list(step.ref_per_token_logps), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sizes", [{}, {"num_hidden_layers": 3, "hidden_size": 20, "intermediate_size": 28}])
def test_a_separate_model_is_another_model_of_transformers(sizes, tiny, many, float64_throughout) -> None:
    other = other_model(tiny, **sizes)
    expected = model_logps(float64_throughout(other.model), many)
    step = step_of(tiny(), many, SeparateModel(other.weights, other.config), gradients=False)
    torch.testing.assert_close(list(step.ref_per_token_logps), expected, rtol=0, atol=1e-12)


def test_a_frozen_adapter_is_a_separate_model_with_the_factors_merged(tiny, many) -> None:
    made = tiny()
    frozen = other_factors(made.lora)
    same(
        step_of(made, many, FrozenAdapter(frozen)),
        step_of(made, many, SeparateModel(merged(made.weights, frozen))),
        1e-11,
    )


def test_a_separate_model_of_the_policys_own_weights_is_the_policy_with_adapters_off(tiny, many) -> None:
    made = tiny()
    same(step_of(made, many, SeparateModel(dict(made.weights))), step_of(made, many))


@pytest.mark.parametrize("kind", ["adapters off", "frozen adapter", "separate model"])
def test_cached_log_probs_give_the_step_of_the_policy_they_came_from(kind, tiny, many) -> None:
    made = tiny()
    live = {
        "adapters off": AdaptersOff(),
        "frozen adapter": FrozenAdapter(other_factors(made.lora)),
        "separate model": SeparateModel(other_model(tiny).weights),
    }[kind]
    expected = step_of(made, many, live)
    same(step_of(made, many, Cached(expected.ref_per_token_logps)), expected)


def forbidden(*_: object) -> Tensor:
    raise AssertionError("a forward pass")


def test_cached_log_probs_cost_no_forward_pass(tiny, many, monkeypatch) -> None:
    made = tiny()
    cached = Cached(step_of(made, many).ref_per_token_logps)
    monkeypatch.setattr(ref_policy_module, "completion_logps", forbidden)
    step_of(made, many, cached)
    with pytest.raises(AssertionError, match="a forward pass"):
        step_of(made, many)


def test_the_kinds_differ_before_anything_is_trained(tiny, many) -> None:
    """A policy is worth nothing more than a frozen copy of itself, but more or less than its model without adapters."""
    made = tiny()
    copied = step_of(made, many, FrozenAdapter(made.lora))
    assert copied.rewards.tolist() == [0.0] * 7
    assert float(copied.loss) == pytest.approx(math.log(2), abs=1e-15)
    steps = [
        step_of(made, many, each)
        for each in (AdaptersOff(), FrozenAdapter(other_factors(made.lora)), SeparateModel(other_model(tiny).weights))
    ]
    losses = [float(step.loss) for step in (copied, *steps)]
    assert min(abs(a - b) for index, a in enumerate(losses) for b in losses[:index]) > 1e-2


def test_the_factors_of_peft_before_training_change_nothing(tiny, many) -> None:
    made = tiny()
    untrained = {name: replace(f, B=torch.zeros_like(f.B)) for name, f in made.lora.items()}
    same(step_of(made, many, FrozenAdapter(untrained)), step_of(made, many))


def test_a_frozen_adapter_may_have_other_modules_than_the_policy(tiny, many) -> None:
    made = tiny()
    one = {Q_PROJ: other_factors(made.lora)[Q_PROJ]}
    step = step_of(made, many, FrozenAdapter(one))
    expected = [completion_logps(s, made.weights, made.config, one) for s in ref_policy_module.unpack(many)]
    assert all(map(torch.equal, step.ref_per_token_logps, expected))
    assert step.gradients.keys() == step_of(made, many).gradients.keys()


@pytest.mark.parametrize("kind", ["frozen adapter", "separate model", "cached"])
@pytest.mark.parametrize("objective", ["sigmoid", "groupdpo-mpo"])
def test_gradients_are_the_slope_of_the_loss(kind, objective, tiny, many) -> None:
    made = tiny()
    ref_policy = {
        "frozen adapter": FrozenAdapter(other_factors(made.lora)),
        "separate model": SeparateModel(other_model(tiny).weights),
        "cached": Cached([logps - 1.0 for logps in step_of(made, many, gradients=False).ref_per_token_logps]),
    }[kind]
    arguments = {"objective": objective, "beta": BETA, "label_smoothing": 0.0, "ref_policy": ref_policy}
    gradients = oracle_step(many, made.weights, made.config, made.lora, **arguments).gradients
    direction = random_direction(made.lora, torch.Generator().manual_seed(7))
    measured = slope_from_losses(many, made.weights, made.config, made.lora, direction, **arguments)
    assert slope_from_gradients(gradients, direction) == pytest.approx(measured, rel=1e-7)
    assert abs(measured) > 1e-4


def test_no_gradient_reaches_a_frozen_policy(tiny, many) -> None:
    made = tiny()
    asking = {name: replace(f, A=f.A.clone().requires_grad_()) for name, f in other_factors(made.lora).items()}
    cached = [logps.clone().requires_grad_() for logps in step_of(made, many, gradients=False).ref_per_token_logps]
    for ref_policy in (FrozenAdapter(asking), Cached(cached)):
        step = step_of(made, many, ref_policy)
        assert not any(logps.requires_grad for logps in step.ref_per_token_logps)
    assert all(f.A.grad is None for f in asking.values())
    assert all(logps.grad is None for logps in cached)


def test_narrow_cached_log_probs_are_widened(tiny, many) -> None:
    made = tiny()
    narrow = [logps.float() for logps in step_of(made, many, gradients=False).ref_per_token_logps]
    step = step_of(made, many, Cached(narrow))
    assert all(map(torch.equal, step.ref_per_token_logps, [logps.double() for logps in narrow]))


def broken_caches(right):
    """What may be wrong with cached log-probs of completions of 4, 2, 5, 1, 3, 3 and 1 tokens."""
    nan = right[2].clone()
    nan[3] = math.nan
    return [
        (right[:-1], "cached log-probs of 6 completions: the groups have 7"),
        ((*right, right[0]), "cached log-probs of 8 completions: the groups have 7"),
        ((right[1], right[0], *right[2:]), r"completion 0 have shape \(2,\) and dtype torch.float64: .* its 4 tokens"),
        ((right[0][None], *right[1:]), r"completion 0 have shape \(1, 4\)"),
        ((right[0].long(), *right[1:]), r"completion 0 have shape \(4,\) and dtype torch.int64"),
        ((*right[:2], nan, *right[3:]), "log-prob of completion 2, token 3 is nan: expected a finite one"),
        ((*right[:3], right[3] - math.inf, *right[4:]), "log-prob of completion 3, token 0 is -inf"),
    ]


def test_cached_log_probs_that_do_not_belong_to_the_groups_are_refused(tiny, many) -> None:
    made = tiny()
    right = step_of(made, many, gradients=False).ref_per_token_logps
    for cached, message in broken_caches(right):
        with pytest.raises(ValueError, match=message):
            step_of(made, many, Cached(cached))


def test_a_frozen_policy_that_does_not_fit_is_refused_before_anything_is_computed(tiny, many, monkeypatch) -> None:
    made = tiny()
    monkeypatch.setattr(ref_policy_module, "completion_logps", forbidden)
    factors = made.lora[Q_PROJ]
    larger, smaller = tiny(adapters=False, vocab_size=62), tiny(adapters=False, num_hidden_layers=1)
    for ref_policy, message in (
        (FrozenAdapter({}), "a frozen adapter without factors: the model with its adapters off is AdaptersOff"),
        (
            FrozenAdapter({"model.layers.2.self_attn.q_proj": factors}),
            r"LoRA on model\.layers\.2\.self_attn\.q_proj: no",
        ),
        (FrozenAdapter({"model.layers.0.self_attn.k_proj": factors}), r"maps \[out, in\] = \(48, 32\)"),
        (SeparateModel(larger.weights, larger.config), "a vocabulary of 62 tokens: the policy has 61"),
        (SeparateModel(smaller.weights), "weights missing: model.layers.1"),
        (SeparateModel({}), "weights missing"),
    ):
        with pytest.raises(ValueError, match=message):
            step_of(made, many, ref_policy)


def test_a_policy_that_does_not_fit_is_refused_before_the_frozen_one_is_computed(tiny, many, monkeypatch) -> None:
    made = tiny()
    monkeypatch.setattr(ref_policy_module, "completion_logps", forbidden)
    unknown = {"model.layers.2.self_attn.q_proj": made.lora[Q_PROJ]}
    for wrong, message in ((replace(made, lora=unknown), "no linear module"), (replace(made, weights={}), "missing")):
        with pytest.raises(ValueError, match=message):
            step_of(wrong, many)


@pytest.mark.parametrize("objective", ["sft-token-mean", "sft-example-mean"])
@pytest.mark.parametrize("ref_policy", [AdaptersOff(), Cached(())], ids=lambda of: of.name)
def test_sft_with_a_frozen_policy_is_refused(objective, ref_policy, tiny, examples) -> None:
    with pytest.raises(ValueError, match=f"SFT with the reference policy '{ref_policy.name}': it has none"):
        step_of(tiny(), examples, ref_policy, objective=objective)


def test_each_kind_has_its_name() -> None:
    kinds = (AdaptersOff, FrozenAdapter, SeparateModel, Cached)
    assert [kind.name for kind in kinds] == ["adapters-off", "frozen-adapter", "separate-model", "cached"]

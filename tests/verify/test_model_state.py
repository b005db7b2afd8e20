"""Whoever works on the model leaves it as it was: changed weights are noticed, changed settings are put back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._functorch import config as compiled

from verify.cases import Case
from verify.gate import GateOutcome
from verify.model_state import WeightsChangedError, mixed_sum, restored_model, weights_hash
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, ModelUnderTest, build_model
from verify.subject import Subject
from verify.verdict import Verdict

UP_PROJ = "base_model.model.model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def model() -> Any:
    """A model of this module's own, since its tests change it."""
    return build_model(ModelRequest(name="tiny", num_layers=1, lora=LoraSpec()), "float32").model


@pytest.fixture
def weight(model: Any) -> Iterator[torch.Tensor]:
    """One frozen weight, which is put back after the test."""
    parameter = dict(model.named_parameters())[f"{UP_PROJ}.base_layer.weight"]
    before = parameter.detach().clone()
    yield parameter
    parameter.data.copy_(before)


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "one-bit": lambda w: w.view(torch.int32)[3, 5].bitwise_xor_(1),
    "one-sign": lambda w: w[0, 0].neg_(),
    "all-signs": lambda w: w.neg_(),
    "two-signs": lambda w: w[0, :2].neg_(),
    "rows-swapped": lambda w: w.copy_(w.flip(0)),
    "columns-swapped": lambda w: w.copy_(w.roll(1, dims=1)),
    "scaled": lambda w: w.mul_(2),
    "zeroed": lambda w: w.zero_(),
    "signed-zero": lambda w: w[0, 0].zero_() if bool(w[0, 0]) else w[0, 0].neg_(),
    "made-nan": lambda w: w[1, 1].fill_(float("nan")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_noticed_and_named(model: Any, weight: torch.Tensor, change: str) -> None:
    """Also where the change goes past autograd, through ``.data``."""
    message = rf"^subject s changed the model: {UP_PROJ}\.base_layer\.weight$".replace("base_model.", r"base_model\.")
    with pytest.raises(WeightsChangedError, match=message), restored_model(model, "s", seed=0):
        CHANGES[change](weight.data)


def test_a_changed_buffer_is_noticed(model: Any) -> None:
    (name, buffer), *_ = ((n, b) for n, b in model.named_buffers() if b.numel() > 1)
    before = buffer.clone()
    with pytest.raises(WeightsChangedError, match=name), restored_model(model, "s", seed=0):
        buffer.mul_(1.5)
    buffer.copy_(before)


def test_a_parameter_that_appears_or_vanishes_is_noticed(model: Any) -> None:
    with pytest.raises(WeightsChangedError, match="stowaway"), restored_model(model, "s", seed=0):
        model.register_parameter("stowaway", nn.Parameter(torch.zeros(1)))
    with pytest.raises(WeightsChangedError, match="stowaway"), restored_model(model, "s", seed=0):
        del model.stowaway


def _shift(parameters: Iterable[torch.Tensor], error: Exception | None = None) -> None:
    for parameter in parameters:
        parameter.data.add_(1)
    if error is not None:
        raise error


def test_many_changed_tensors_are_counted(model: Any) -> None:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(WeightsChangedError, match=r"and \d+ more$"), restored_model(model, "s", seed=0):
        _shift(model.parameters())
    for name, parameter in model.named_parameters():
        parameter.data.copy_(before[name])


def test_changed_weights_are_named_even_where_the_subject_raised(model: Any, weight: torch.Tensor) -> None:
    with pytest.raises(WeightsChangedError), restored_model(model, "s", seed=0):
        _shift([weight], RuntimeError("out of memory"))


def test_a_change_that_was_undone_is_none(model: Any, weight: torch.Tensor) -> None:
    with restored_model(model, "s", seed=0) as restored:
        before = weight.detach().clone()
        weight.data.add_(1)
        weight.data.copy_(before)
    assert restored.settings == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool])
def test_both_ways_to_hash_see_values_change_place(dtype: torch.dtype) -> None:
    """On the CPU over bytes, elsewhere over elements; neither may depend on memory layout."""
    values = torch.tensor([[3, -1, 0, 7], [2, 5, -4, 0]]).to(dtype)
    turned = values.flip(1)
    digests: tuple[Callable[[torch.Tensor], int], ...] = (_hash_of, lambda t: mixed_sum(t.contiguous().reshape(-1)))
    for digest in digests:
        assert digest(values) == digest(values.clone()) == digest(values.T.contiguous().T)
        assert digest(values) != digest(turned)
        if dtype.is_floating_point:
            assert digest(values) != digest(-values)


def _hash_of(values: torch.Tensor) -> int:
    (digest,) = weights_hash([("holder", _Holder(values))]).values()
    return digest


class _Holder(nn.Module):
    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20), st.data())
def test_the_hash_on_a_device_sees_one_changed_element(values: list[float], data: st.DataObject) -> None:
    before = torch.tensor(values)
    index = data.draw(st.integers(0, len(values) - 1))
    after = before.clone()
    after.view(torch.int32)[index] ^= 1 << data.draw(st.integers(0, 30))
    assert mixed_sum(before) != mixed_sum(after)


def test_empty_and_scalar_tensors_have_a_hash() -> None:
    for tensor in (torch.zeros(0), torch.tensor(1.5), torch.zeros(0, 3)):
        assert isinstance(_hash_of(tensor), int)


# Settings.


def _eager(model: Any) -> None:
    model.set_attn_implementation("eager")


def _train(model: Any) -> None:
    model.train()


def _thaw(model: Any) -> None:
    dict(model.named_parameters())[f"{UP_PROJ}.base_layer.weight"].requires_grad_(True)


def _freeze(model: Any) -> None:
    dict(model.named_parameters())[f"{UP_PROJ}.lora_A.default.weight"].requires_grad_(False)


def _adapters_off(model: Any) -> None:
    model.base_model.disable_adapter_layers()


def _forward_hook(model: Any) -> None:
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: output * 2)


def _forward_pre_hook(model: Any) -> None:
    model.get_output_embeddings().register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _backward_hook(model: Any) -> None:
    model.get_output_embeddings().register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))


def _gradient_hook(model: Any) -> None:
    dict(model.named_parameters())[f"{UP_PROJ}.lora_A.default.weight"].register_hook(lambda gradient: gradient * 2)


def _forward_replaced(model: Any) -> None:
    embedding = model.get_input_embeddings()
    forward = embedding.forward
    embedding.forward = lambda ids: forward(ids) * 2


def _default_dtype(model: Any) -> None:
    torch.set_default_dtype(torch.float64)


def _grad_mode(model: Any) -> None:
    torch.set_grad_enabled(False)


LEFT_CHANGED: dict[str, tuple[Callable[[Any], None], str]] = {
    "attention": (_eager, r"attention implementation eager \(was sdpa\)"),
    "mode": (_train, "mode"),
    "a frozen weight thawed": (_thaw, "requires_grad of 1 modules"),
    "an adapter frozen": (_freeze, "requires_grad of 1 modules"),
    "adapters off": (_adapters_off, "adapters"),
    "a forward hook": (_forward_hook, "hooks"),
    "a forward pre-hook": (_forward_pre_hook, "hooks"),
    "a backward hook": (_backward_hook, "hooks"),
    "a gradient hook": (_gradient_hook, "hooks"),
    "a replaced forward": (_forward_replaced, "of 1 modules"),
    "default dtype": (_default_dtype, r"default dtype torch\.float64 \(was torch\.float32\)"),
    "grad mode": (_grad_mode, "grad mode"),
}


@pytest.mark.parametrize("name", LEFT_CHANGED)
def test_a_setting_left_changed_is_put_back_and_named(model: Any, name: str) -> None:
    change, message = LEFT_CHANGED[name]
    with restored_model(model, "s", seed=0) as restored:
        change(model)
    assert len(restored.settings) >= 1
    assert any(re.search(message, text) for text in restored.settings), restored.settings
    with restored_model(model, "s", seed=0) as restored:
        pass
    assert restored.settings == []


class _Spoils:
    """A right subject that leaves one thing behind."""

    name = "spoils"

    def __init__(self, subject: Subject, change: Callable[[Any], None]) -> None:
        self._subject, self._change = subject, change

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        logps = self._subject.per_token_logps(model, groups)
        if torch.is_grad_enabled():
            self._change(model)
        return logps


def test_a_question_about_support_is_guarded_too(
    gate: Callable[..., GateOutcome], third_party: Callable[[str], Subject], short_case: Case
) -> None:
    by_hand: Any = third_party("ByHand")
    doubles = {"supports_gradients": lambda model: [p.data.mul_(2) for p in model.parameters()]}
    subject = replace(by_hand, optional=doubles)
    outcome = gate([subject, _Spoils(third_party("ByHand"), _train)], [short_case], variations=("eager",))
    assert [result.verdict for result in outcome.results] == [Verdict.ERROR, Verdict.PASS]
    assert "subject by-hand changed the model: " in outcome.results[0].reasons[0]


@pytest.mark.parametrize("name", sorted(LEFT_CHANGED.keys() - {"an adapter frozen", "adapters off", "grad mode"}))
def test_what_a_subject_leaves_behind_does_not_reach_the_next_one(
    gate: Callable[..., GateOutcome], third_party: Callable[[str], Subject], short_case: Case, name: str
) -> None:
    spoils = _Spoils(third_party("ByHand"), LEFT_CHANGED[name][0])
    outcome = gate([spoils, third_party("ByHand")], [short_case], variations=("eager",))
    assert outcome.results[1].verdict is Verdict.PASS, outcome.results[1].reasons
    assert any(note.startswith("subject spoils left the model changed") for note in outcome.notes)


def test_gradients_are_clean_before_and_after(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with restored_model(model, "s", seed=0):
        assert all(parameter.grad is None for parameter in model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_compiled_inside_may_go_backward_more_than_once(model: Any) -> None:
    """torch gives buffers of compiled functions away in the first backward pass; reach makes several over one graph."""
    usual = compiled.donated_buffer
    with restored_model(model, "s", seed=0):
        assert not compiled.donated_buffer
    assert compiled.donated_buffer == usual


def test_random_numbers_inside_depend_on_the_seed_alone_and_leave_no_trace(model: Any) -> None:
    def draw(seed: int) -> torch.Tensor:
        with restored_model(model, "s", seed=seed):
            return torch.rand(3)

    torch.manual_seed(11)
    expected = torch.rand(2)
    torch.manual_seed(11)
    first, second, other = draw(5), draw(5), draw(6)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.rand(2), expected)


def _draw_train_and_raise(model: Any) -> None:
    torch.rand(1)
    model.train()
    raise RuntimeError("boom")


def test_settings_and_random_numbers_are_put_back_even_where_the_subject_raised(model: Any) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="boom"), restored_model(model, "s", seed=0) as restored:
        _draw_train_and_raise(model)
    assert restored.settings
    assert not any(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_shared_model_is_as_it_was_built(tiny: Callable[[str], ModelUnderTest]) -> None:
    """What other test modules share: the guard has held if it equals a fresh one."""
    fresh = build_model(ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)), "float32").model
    assert weights_hash([*tiny("float32").model.named_modules()]) == weights_hash([*fresh.named_modules()])

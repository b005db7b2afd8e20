"""The model under comparison: the same values in every dtype, adapters that matter, and a request that can be met."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from verify.models.adapters import adapters_off
from verify.models.configs import TINY_CONFIGS, named_config
from verify.models.dtypes import DTYPES
from verify.models.lora import LORA_TARGETS, LoraSpec, add_lora
from verify.models.random_weights import build_random
from verify.models.request import ModelRequest, ModelUnderTest, build_model, check_device, vocabulary_size

Tiny = Callable[[str], ModelUnderTest]


def tensors(under_test: ModelUnderTest) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in under_test.model.named_parameters()}


def test_every_dtype_holds_the_same_values(tiny: Tiny) -> None:
    """Weights and adapters: otherwise one float64 oracle could not serve all of them."""
    wide = tensors(tiny("float64"))
    for dtype in ("float32", "bfloat16"):
        narrow = tensors(tiny(dtype))
        assert narrow.keys() == wide.keys()
        assert all(torch.equal(narrow[name].double(), wide[name]) for name in wide)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tensor_has_the_dtype_that_was_asked_for(tiny: Tiny, dtype: str) -> None:
    under_test = tiny(dtype)
    base = {p.dtype for name, p in under_test.model.named_parameters() if ".lora_" not in name}
    assert base == {DTYPES[dtype]}
    assert under_test.exact_in_bfloat16


def test_bfloat16_represents_every_value(tiny: Tiny) -> None:
    assert all(torch.equal(t.bfloat16().double(), t) for t in tensors(tiny("float64")).values())


@pytest.mark.parametrize("family", [name for name in TINY_CONFIGS if name != "tiny"])
def test_no_weight_or_bias_of_another_family_is_a_plain_one_or_zero(family: str) -> None:
    model = build_random(named_config(family), num_layers=1, dtype=torch.float32, seed=0)
    assert all(float(tensor.std()) > 0.05 for tensor in model.parameters())
    names = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert len(names) == (3 if family == "tiny-qwen2" else 0)


def test_no_weight_is_a_plain_one_or_zero(tiny: Tiny) -> None:
    """A norm of all ones would hide one that is left out."""
    for name, tensor in tensors(tiny("float64")).items():
        assert tensor.std() > 0.01, name
    norms = [t for name, t in tensors(tiny("float64")).items() if name.endswith("norm.weight")]
    assert len(norms) == 5  # two per layer, one each for queries and keys, one at the end
    assert all(0.5 < float(norm.mean()) < 1.5 for norm in norms)


def test_the_seed_decides_every_value() -> None:
    requests = [ModelRequest(name="tiny", num_layers=1, seed=seed) for seed in (0, 1, 0)]
    one, other, again = (tensors(build_model(request, "float32")) for request in requests)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(one[name], again[name]) for name in one)


def test_the_depth_is_cut_to_what_was_asked_for(tiny: Tiny) -> None:
    published = named_config("tiny").num_hidden_layers
    assert len(tiny("float32").model.base_model.model.model.layers) == 1
    assert tiny("float32").num_layers_published == published
    with pytest.raises(ValueError, match=rf"--layers {published + 1}: tiny has {published} layers"):
        ModelRequest(name="tiny", num_layers=published + 1)
    with pytest.raises(ValueError, match="--layers 0: tiny has"):
        ModelRequest(name="tiny", num_layers=0)


# Adapters.


def test_only_lora_tensors_require_grad_and_none_is_zero(tiny: Tiny) -> None:
    model = tiny("float32").model
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {name for name, _ in model.named_parameters() if ".lora_" in name}
    assert len(trainable) == 2 * len(LORA_TARGETS)
    assert all(bool(p.detach().all()) for n, p in model.named_parameters() if n in trainable)
    assert not any(module.training for module in model.modules())


def test_what_one_token_of_a_tiny_model_with_experts_computes_has_the_same_bits_beside_any_others() -> None:
    """Others decide how many tokens share its experts."""
    model = build_model(ModelRequest(name="tiny-qwen3-moe"), "float32").model
    start = [3, 1, 4, 1, 5]
    with torch.no_grad():
        found = [
            model(input_ids=torch.tensor([[*start, *([other] * 20)]]), use_cache=False).logits[0, :5]
            for other in range(7, 17)
        ]
    assert all(torch.equal(found[0], each) for each in found)


@pytest.mark.parametrize(("inner", "expected"), [(32, "batched_mm"), (768, "eager")])
def test_only_small_experts_are_copied_for_each_token(inner: int, expected: str) -> None:
    config = named_config("tiny-qwen3-moe")
    assert config.experts is not None
    config = replace(config, experts=replace(config.experts, moe_intermediate_size=inner))
    assert build_random(config, num_layers=1, dtype=torch.float64, seed=0).config._experts_implementation == expected


def test_adapters_of_a_model_with_experts_are_those_of_attention() -> None:
    model = build_model(ModelRequest(name="tiny-qwen3-moe", num_layers=1), "float32").model
    adapted = {name.split(".")[-4] for name, p in model.named_parameters() if p.requires_grad}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}
    only_mlp = LoraSpec(targets=("gate_proj", "up_proj"))
    with pytest.raises(
        ValueError, match=r"gate_proj, up_proj of a model with experts: give some of q_proj, .* not supp"
    ):
        build_model(ModelRequest(name="tiny-qwen3-moe", num_layers=1, lora=only_mlp), "float32")


@pytest.mark.parametrize("strength", [0.05, 0.3])
def test_the_update_is_as_strong_as_was_asked_for(strength: float) -> None:
    """RMS of scaling * B A over RMS of the weight, of every adapted layer."""
    model = build_model(ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=strength)), "float64").model
    found = []
    for module in model.modules():
        if "default" in getattr(module, "lora_A", ()):
            update = 2.0 * module.lora_B["default"].weight.detach() @ module.lora_A["default"].weight.detach()
            found.append(float(update.square().mean().sqrt() / module.base_layer.weight.square().mean().sqrt()))
    assert len(found) == 7
    assert all(0.7 * strength < value < 1.4 * strength for value in found)


def test_adapters_change_what_the_model_computes(tiny: Tiny) -> None:
    model = tiny("float64").model
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        on = model(input_ids=ids).logits
        with model.disable_adapter():
            off = model(input_ids=ids).logits
    assert float((on - off).abs().mean()) > 0.1


def test_an_adapter_on_a_weight_of_zero_is_refused() -> None:
    base = build_random(named_config("tiny"), num_layers=1, dtype=torch.float32, seed=0)
    base.model.layers[0].mlp.up_proj.weight.data.zero_()
    with pytest.raises(ValueError, match="up_proj: the weight is zero"):
        add_lora(base, LoraSpec(), seed=0)


def test_scaling_is_alpha_over_rank() -> None:
    assert LoraSpec(rank=4, alpha=12).scaling == 3.0
    assert replace(LoraSpec(), rank=16, alpha=16).scaling == 1.0
    assert math.isclose(LoraSpec().scaling, 2.0)


# Requests.


@pytest.mark.parametrize("dtype", ["float16", "float8", ""])
def test_only_dtypes_with_an_oracle_to_hold_them_against_are_known(dtype: str) -> None:
    assert dtype not in DTYPES


def test_an_unknown_name_is_refused_before_anything_is_built() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'qwen4' \(did you mean qwen3-4b\?\): give one of tiny"):
        ModelRequest(name="qwen4")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_is_refused_where_there_is_none(device: str) -> None:
    with pytest.raises(ValueError, match=f"--device {device}: torch .* sees no CUDA device here; give --device cpu"):
        ModelRequest(name="tiny", device=device)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "not a torch device; give cpu, cuda or cuda:N"),
        ("meta", "only cpu and cuda are supported"),
        ("mps", "only cpu and cuda are supported"),
    ],
)
def test_a_device_that_is_none_is_refused(device: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"--device {device}: {message}"):
        check_device(device)


def test_cuda_with_an_index_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device("cuda:1")
    with pytest.raises(ValueError, match="--device cuda:2: there are 2 CUDA devices"):
        check_device("cuda:2")


def test_the_vocabulary_is_known_without_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("built")

    monkeypatch.setattr("verify.models.request.build_random", refuse)
    assert vocabulary_size(ModelRequest(name="tiny")) == 257
    assert vocabulary_size(ModelRequest(name="qwen3-32b")) == 151_936


def test_a_folder_with_the_name_of_a_config_does_not_hide_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not ModelRequest(name="tiny").is_checkpoint
    assert ModelRequest(name="./tiny").is_checkpoint


def test_adapters_off_is_what_peft_means_by_it_and_they_are_on_again_afterwards(tiny: Tiny) -> None:
    model = tiny("float32").model
    ids = torch.tensor([[3, 5, 7, 11]])

    def logits() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model(input_ids=ids, use_cache=False).logits
        return found

    on, flags = logits(), [parameter.requires_grad for parameter in model.parameters()]
    with model.disable_adapter():
        off = logits()
    with adapters_off(model):
        assert torch.equal(logits(), off)
    with pytest.raises(RuntimeError, match="boom"), adapters_off(model):
        raise RuntimeError("boom")
    assert not torch.equal(off, on)
    assert torch.equal(logits(), on)
    assert [parameter.requires_grad for parameter in model.parameters()] == flags


def test_adapters_off_writes_no_parameter_and_leaves_off_what_was_off() -> None:
    model = build_model(ModelRequest(name="tiny", num_layers=1), "float32").model
    layers = [module for module in model.modules() if hasattr(module, "_disable_adapters")]
    frozen = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    frozen.requires_grad_(False)
    layers[0]._disable_adapters = True
    flags = [parameter.requires_grad for parameter in model.parameters()]
    with adapters_off(model):
        assert all(layer._disable_adapters for layer in layers)
        assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert [layer._disable_adapters for layer in layers] == [True] + [False] * (len(layers) - 1)
    assert [parameter.requires_grad for parameter in model.parameters()] == flags


def test_adapters_off_switches_a_layer_that_was_put_in_since_the_last_time() -> None:
    model, donor = (build_model(ModelRequest(name="tiny", num_layers=1), "float32").model for _ in range(2))
    with adapters_off(model):
        pass
    attention, other = model.get_decoder().layers[0].self_attn, donor.get_decoder().layers[0].self_attn
    attention.q_proj = other.q_proj
    with adapters_off(model):
        assert attention.q_proj.disable_adapters
    assert not attention.q_proj.disable_adapters


def test_a_model_without_adapters_has_none_to_switch_off() -> None:
    with pytest.raises(ValueError, match="Linear has no layer with adapters"), adapters_off(torch.nn.Linear(1, 1)):
        pass

"""A step put together from few layers against the step on all of them, and layers that are not alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

from verify.forecast.depth import LayersDifferError, joined, unrolled
from verify.forecast.fake_model import layers_are_alike
from verify.forecast.forecast import pairs_of
from verify.forecast.paper_model import PaperModel
from verify.forecast.peak import peak_of
from verify.forecast.request import Training
from verify.forecast.state import NOTHING_IN_FLIGHT, InFlight
from verify.forecast.step_trace import Window
from verify.forecast.work import Work, total_work
from verify.models.configs import NAMED_CONFIGS
from verify.models.random_weights import hf_config
from verify.packing_plan.costs import GroupLengths

CONFIG = hf_config(NAMED_CONFIGS["tiny"], 6)


def test_four_layers_repeated_are_six_layers() -> None:
    model = PaperModel(CONFIG, Training(), dtype=torch.bfloat16, device_type="cuda")
    batch = pairs_of(prompt=9, response=7, number=1)
    whole = model.windows("dense", batch, 6, with_reference=False)
    steps = model.step("dense", batch, for_peak=True), unrolled(whole, 6, 6)
    assert max(each.times for each in steps[0]) == 3
    peaks = [peak_of(step, parameters=0, optimizer_state=0, in_flight=NOTHING_IN_FLIGHT, num_ranks=1) for step in steps]
    works = [total_work((each.window.work, each.times) for each in step) for step in steps]
    assert peaks[0] == peaks[1]
    assert works[0] == works[1]


def window(phase: str = "policy", layer: int | None = None, growth: int = 0, **other: int) -> Window:
    defaults = {"excess": 0, "gradient_growth": 0}
    return Window(phase=phase, layer=layer, growth=growth, work=Work(), **(defaults | other))  # type: ignore[arg-type]


def test_layers_that_differ_are_refused() -> None:
    windows = [window(layer=layer, growth=growth) for layer, growth in enumerate((1, 2, 3, 4))]
    with pytest.raises(LayersDifferError, match="trace all layers"):
        unrolled(windows, 4, 9)
    alike = [replace(each, growth=2) for each in windows]
    assert [each.times for each in unrolled(alike, 4, 9)] == [1, 6, 1, 1]


def test_the_peak_of_a_run_of_layers_is_at_the_end_where_bytes_grow() -> None:
    forward = [window(layer=layer, growth=10, excess=25) for layer in range(4)]
    backward = [window("backward", layer, growth=-10, excess=7) for layer in (3, 2, 1, 0)]
    step = unrolled([*forward, *backward], 4, 9)
    peak = peak_of(step, parameters=100, optimizer_state=3, in_flight=NOTHING_IN_FLIGHT, num_ranks=1)
    assert (peak.total, peak.phase, peak.layer) == (103 + 80 + 25, "policy", 8)


def test_gradients_of_layers_are_shared_and_those_of_the_root_are_whole_until_the_optimizer() -> None:
    backward = [window("backward", None, gradient_growth=100)]
    backward += [window("backward", layer, gradient_growth=40) for layer in (2, 1, 0)]
    step = unrolled([*backward, window("optimizer", excess=1000)], 3, 3)
    before = peak_of(step[:-1], parameters=0, optimizer_state=0, in_flight=InFlight(1, 1, 1, 1), num_ranks=2)
    after = peak_of(step, parameters=0, optimizer_state=0, in_flight=InFlight(1, 1, 1, 1), num_ranks=2)
    assert before.gradients == 100 + 2 * 40 // 2  # in the last layer's window its own are among what it computes
    assert after.gradients == (100 + 3 * 40) // 2


def test_calls_run_backward_last_first_and_make_gradients_once() -> None:
    calls = [
        unrolled([window("policy", growth=size), window("backward", growth=-size, gradient_growth=5)], 1, 1)
        for size in (1, 2)
    ]
    step = [each.window for each in joined(calls)]
    assert [(w.phase, w.growth, w.gradient_growth) for w in step] == [
        ("policy", 1, 0),
        ("policy", 2, 0),
        ("backward", -2, 5),
        ("backward", -1, 0),
    ]


@pytest.mark.parametrize("dense", [(0,), (1,), (4,)])
def test_a_layer_without_experts_counts_wherever_it_is(dense: tuple[int, ...]) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 12, "head_dim": 4, "num_attention_heads": 2}
    experts = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "mlp_only_layers": list(dense)}
    config = Qwen3MoeConfig(**sizes, **experts, num_key_value_heads=1, num_hidden_layers=5, use_sliding_window=False)
    with torch.device("meta"):
        real = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    model = PaperModel(config, Training(), dtype=torch.float32, device_type="cpu")
    elements, adapters = model.num_elements()
    assert elements - adapters == real
    lengths = [GroupLengths(5, (4, 3))]
    step, whole = model.step("dense", lengths), model.windows("dense", lengths, 5)
    counted = total_work((each.window.work, each.times) for each in step).counted
    assert counted == sum(each.work.counted for each in whole) > 0


def test_a_window_that_begins_after_the_first_layers_makes_layers_differ() -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 12, "num_attention_heads": 2}
    config = Qwen2Config(**sizes, num_key_value_heads=1, num_hidden_layers=6, use_sliding_window=True)
    assert not layers_are_alike(Qwen2Config(**{**config.to_dict(), "layer_types": None, "max_window_layers": 5}))
    assert layers_are_alike(Qwen2Config(**{**config.to_dict(), "layer_types": None, "max_window_layers": 6}))

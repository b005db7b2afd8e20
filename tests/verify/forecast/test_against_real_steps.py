"""A forecast from shapes against the step itself, on this CPU: FLOPs to the last one, live bytes within 5 %."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import logsigmoid
from torch.utils.flop_counter import FlopCounterMode

from packed_impl.adapters import adapters_off
from packed_impl.attention import attention_implementation
from packed_impl.logps import completion_logps
from packed_impl.reference_policy import ADAPTERS_OFF, SeparateModel
from packed_impl.step import dpo_loss
from reports.cost_record import PathName
from verify.forecast.operators import CPU_ATTENTION_FORMULAS
from verify.forecast.paper_model import PaperModel
from verify.forecast.peak import peak_of
from verify.forecast.request import Training
from verify.forecast.state import NOTHING_IN_FLIGHT
from verify.forecast.step_trace import StepTrace
from verify.forecast.work import total_work
from verify.groups import PreferenceGroup
from verify.models.configs import NamedConfig
from verify.models.random_weights import build_random, hf_config
from verify.models.request import ModelRequest, build_model
from verify.packing_plan.costs import GroupLengths
from verify.subjects.path_calls import path_calls

CONFIG = NamedConfig(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=False,
    weight_std=0.05,
)


def random_pairs(prompt: int, responses: list[tuple[int, int]]) -> list[PreferenceGroup]:
    generator = torch.Generator().manual_seed(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(CONFIG.vocab_size, (length,), generator=generator).tolist())

    return [PreferenceGroup(ids(prompt), (ids(chosen),), (ids(rejected),)) for chosen, rejected in responses]


def real_models(training: Training, config: NamedConfig = CONFIG) -> tuple[Any, Any]:
    """The policy in training mode, and a frozen copy where one is needed."""
    if training.train == "lora":
        model, other = build_model(ModelRequest(name="small", config=config, lora=training.lora), "float32").model, None
        language_model = model.get_base_model()
    else:
        model, other = (
            build_random(config, num_layers=config.num_hidden_layers, dtype=torch.float32, seed=seed) for seed in (0, 1)
        )
        language_model = model.requires_grad_(True)
    if training.checkpointing:
        enable = getattr(language_model, "activation_checkpointing_enable", None)
        (enable or language_model.gradient_checkpointing_enable)({"use_reentrant": False})
    return model.train(), other


def real_step(
    path: PathName, training: Training, model: nn.Module, other: Any, groups: list[PreferenceGroup]
) -> Callable[[], None]:
    """The step of a trainer: packed by the packed step itself, unpacked by the plain computation."""
    return {
        "dense": lambda: _packed_step("dense-sdpa", "row-per-group", training, model, other, groups),
        "split": lambda: _packed_step("split", "one-row", training, model, other, groups),
    }.get(path, lambda: _unpacked_step(path, training, model, other, groups))


def _packed_step(
    backend: str, rows: str, training: Training, model: nn.Module, other: Any, groups: list[PreferenceGroup]
) -> None:
    reference = ADAPTERS_OFF if other is None else SeparateModel(other)
    with attention_implementation(model, backend):
        dpo_loss(
            model, groups, backend=backend, rows=rows, beta=0.1, reference=reference, logit_chunk=training.logit_chunk
        ).loss.backward()


def _unpacked_step(
    path: PathName, training: Training, model: nn.Module, other: Any, groups: list[PreferenceGroup]
) -> None:
    def logps(of: nn.Module) -> torch.Tensor:
        return torch.stack([
            each.sum()
            for call in path_calls(path, groups)
            for each in completion_logps(
                of, call.layout, {"attention_mask": None}, logit_chunk=training.logit_chunk
            ).split(list(call.layout.completion_lengths))
        ])  # fmt: skip

    with attention_implementation(model, "dense-sdpa"):
        with torch.no_grad(), adapters_off(model) if other is None else nullcontext():
            ref = logps(model if other is None else other)
        z = (logps(model) - ref).view(-1, 2)
        (-logsigmoid(0.1 * (z[:, 0] - z[:, 1])).mean()).backward()


def forecast_of(training: Training, path: PathName, groups: list[PreferenceGroup]) -> tuple[int, int]:
    """Peak of live bytes beside the parameters, and counted FLOPs."""
    paper = PaperModel(hf_config(CONFIG, CONFIG.num_hidden_layers), training, dtype=torch.float32, device_type="cpu")
    step = paper.step(path, [GroupLengths(len(g.prompt_ids), tuple(map(len, g.completions))) for g in groups])
    peak = peak_of(step, parameters=0, optimizer_state=0, in_flight=NOTHING_IN_FLIGHT, num_ranks=1)
    return peak.total, total_work((each.window.work, each.times) for each in step).counted


EVEN, UNEVEN = [(30, 30)] * 2, [(30, 11), (5, 30)]
STEPS: list[tuple[PathName, Training, list[tuple[int, int]]]] = [
    ("padded", Training(), UNEVEN),
    ("padded", Training(train="all", checkpointing=True), EVEN),
    ("unpadded", Training(logit_chunk=20), EVEN),
    ("dense", Training(checkpointing=True, logit_chunk=40), UNEVEN),
    ("dense", Training(train="all"), EVEN),
    ("split", Training(logit_chunk=40), UNEVEN),
]


@pytest.mark.parametrize(("path", "training", "responses"), STEPS)
def test_live_bytes_and_flops_are_those_of_the_real_step(
    path: PathName, training: Training, responses: list[tuple[int, int]]
) -> None:
    groups = random_pairs(50, responses)
    model, other = real_models(training)
    trace = StepTrace(model, *([] if other is None else [other]))
    with trace:
        real_step(path, training, model, other, groups)()
    trace.close()
    peak, flops = forecast_of(training, path, groups)
    assert abs(peak / trace.peak - 1) < 0.05, f"forecast {peak:,}, real {trace.peak:,}"
    assert flops == sum(window.work.counted for window in trace.windows) > 0


@pytest.mark.parametrize(("path", "training", "responses"), STEPS[3:4])
def test_flops_of_a_real_step_are_those_that_torch_counts(
    path: PathName, training: Training, responses: list[tuple[int, int]]
) -> None:
    groups = random_pairs(50, responses)
    model, other = real_models(training)
    trace = StepTrace(model)
    counter = FlopCounterMode(display=False, custom_mapping=dict(CPU_ATTENTION_FORMULAS))
    with counter, trace:
        real_step(path, training, model, other, groups)()
    trace.close()
    assert sum(window.work.counted for window in trace.windows) == counter.get_total_flops() > 0

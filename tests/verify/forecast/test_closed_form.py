"""FLOPs by formula against those that are counted while shapes run through the step."""

from __future__ import annotations

import pytest
import torch

from reports.cost_record import PathName
from verify.forecast.closed_form import closed_form
from verify.forecast.paper_model import PaperModel
from verify.forecast.request import Training
from verify.forecast.work import total_work
from verify.models.configs import NAMED_CONFIGS
from verify.models.random_weights import hf_config
from verify.packing_plan.costs import GroupLengths

UNEVEN = [GroupLengths(50, (30, 11)), GroupLengths(7, (5, 30, 9))]
EVEN = [GroupLengths(20, (11, 11))] * 2


@pytest.mark.parametrize(
    ("name", "path", "training", "lengths"),
    [
        ("qwen3-8b", "split", Training(), UNEVEN),
        ("qwen3-0.6b", "unpadded", Training(checkpointing=True, logit_chunk=8), EVEN),
        ("llama-3.2-1b", "padded", Training(train="all", logit_chunk=16), UNEVEN),
        ("qwen3-4b", "dense", Training(train="all", checkpointing=True), UNEVEN),
        ("qwen3-32b", "sparse", Training(checkpointing=True, logit_chunk=16), UNEVEN),
    ],
)
def test_every_flop_has_a_term(name: str, path: PathName, training: Training, lengths: list[GroupLengths]) -> None:
    config = hf_config(NAMED_CONFIGS[name], NAMED_CONFIGS[name].num_hidden_layers)
    model = PaperModel(config, training, dtype=torch.bfloat16, device_type="cuda")
    counted = total_work((each.window.work, each.times) for each in model.step(path, lengths)).counted
    terms = closed_form(config, training, path, lengths)
    assert sum(term.flops for term in terms) == counted > 0


def test_experts_have_no_closed_form() -> None:
    config = hf_config(NAMED_CONFIGS["tiny-qwen3-moe"], 2)
    assert closed_form(config, Training(), "split", EVEN) == ()

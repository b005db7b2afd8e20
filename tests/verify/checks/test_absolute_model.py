"""The decoder with absolute positions is like the model of the run in what a subject may rely on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from verify.checks.cases import check_cases
from verify.checks.yardsticks import measure_yardsticks
from verify.model_state import Baseline
from verify.models.configs import named_config
from verify.models.every_weight import train_every_weight
from verify.models.lora import LoraSpec, add_lora
from verify.models.random_weights import build_random
from verify.objective import Preference
from verify.tolerance import load_policy


@pytest.mark.parametrize("with_adapters", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_its_head_is_its_embedding_where_that_of_the_run_is(tied: bool, with_adapters: bool) -> None:
    """A subject that writes the head out by hand may take either tensor of a tied model."""
    base = build_random(
        replace(named_config("tiny"), tie_word_embeddings=tied), num_layers=1, dtype=torch.float32, seed=0
    )
    of_run = add_lora(base, LoraSpec(strength=0.3), seed=1) if with_adapters else train_every_weight(base)
    yardsticks = measure_yardsticks(
        of_run,
        Baseline.read(of_run),
        check_cases(257, 0),
        {"absolute-positions"},
        dtype="float32",
        objective=Preference(beta=0.3, label_smoothing=0.1),
        policy=load_policy(None),
        seed=0,
    )
    model = yardsticks.absolute["distinct-tokens"].model
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is tied

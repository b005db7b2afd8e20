"""The model of what FSDP2 gathers, against FSDP2 on two ranks of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from verify.forecast.forecast import pairs_of
from verify.forecast.paper_model import PaperModel
from verify.forecast.peak import PeakBytes, peak_of
from verify.forecast.request import Trained, Training
from verify.forecast.state import InFlight
from verify.models.configs import NamedConfig
from verify.models.random_weights import hf_config

RANK = Path(__file__).with_name("sharded_rank.py")
ROOT = Path(__file__).resolve().parents[3]
CONFIG = NamedConfig(
    vocab_size=600,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=False,
    weight_std=0.05,
)


def real_peaks(store: Path) -> tuple[int, int]:
    """Of rank 0, adapters trained and all parameters."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, RANK, store, "2"], capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lora, everything = map(int, done.stdout.split())
    return lora, everything


def forecast_peak(trained: Trained) -> PeakBytes:
    """Without an optimizer, of which the real step has none."""
    model = PaperModel(hf_config(CONFIG, 5), Training(train=trained), dtype=torch.float32, device_type="cpu")
    states = model.state, model.reference_state
    return peak_of(
        model.step("dense", pairs_of(prompt=24, response=16, number=2)),
        parameters=sum(state.num_bytes(2) for state in states if state is not None),
        optimizer_state=0,
        in_flight=InFlight.of(*states, 2),
        num_ranks=2,
    )


def test_the_peak_of_a_rank_is_that_of_fsdp2(tmp_path: Path) -> None:
    forecasts = forecast_peak("lora"), forecast_peak("all")
    for forecast, real in zip(forecasts, real_peaks(tmp_path / "store"), strict=True):
        assert abs(forecast.total / real - 1) < 0.05, f"forecast {forecast}, {forecast.total:,} in all; real {real:,}"

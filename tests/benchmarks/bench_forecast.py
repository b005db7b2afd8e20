"""How long does a forecast of Qwen3-8B take?

At most 15 s for each path, the search for the longest pair included; imports are not.

    tox -e bench -- tests/benchmarks/bench_forecast.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from reports.cost_record import PATH_NAMES, PathName
from verify.forecast.devices import device_profile
from verify.forecast.forecast import forecast_path, pairs_of
from verify.forecast.longest import longest_pair
from verify.forecast.paper_model import PaperModel, read_any_config
from verify.forecast.request import Training

LIMIT_S, RANKS = 15.0, 2


@pytest.mark.parametrize("path", PATH_NAMES)
def test_a_path_of_qwen3_8b(
    benchmark: Callable[..., object], capsys: pytest.CaptureFixture[str], path: PathName
) -> None:
    device = device_profile("gb10", dtype=torch.bfloat16)
    cpu_s: list[float] = []

    def forecast() -> None:
        started = time.process_time()
        model = PaperModel(read_any_config("qwen3-8b"), Training(), dtype=torch.bfloat16, device_type=device.kind)
        forecast_path(model, path, pairs_of(prompt=512, response=512, number=4), device, num_ranks=RANKS)
        longest_pair(model, path, device, prompt=512, response=512, num_ranks=RANKS)
        cpu_s.append(time.process_time() - started)

    benchmark.pedantic(forecast, rounds=1)  # type: ignore[attr-defined]
    with capsys.disabled():
        print(f"\n{path}: {cpu_s[-1]:.1f} s of CPU")
    assert cpu_s[-1] < LIMIT_S

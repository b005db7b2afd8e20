"""Optimizer steps of a sharded model that cannot be made."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import nn

from verify.sharded import optimizer
from verify.subjects.sharded import HONEST


def test_a_trained_tensor_without_a_gradient_is_a_difference_and_no_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a subject leaves it that has switched the sum over ranks off (``set_requires_gradient_sync(False)``)."""
    monkeypatch.setattr(optimizer, "accumulate", lambda *args, **options: None)
    model = nn.Linear(2, 2, bias=False)
    scenario = SimpleNamespace(case=SimpleNamespace(groups=[None]), micro_size=1)
    bench = SimpleNamespace(sharded=model, whole=model, seed=0, scenario=scenario)
    bench.on_rank = lambda: SimpleNamespace(work=None)
    (nothing,) = optimizer.optimizer_differences(cast("Any", bench), HONEST, 1e-7)
    assert nothing.what == "the gradient of weight, of which there is none,"
    assert nothing.ratio == math.inf

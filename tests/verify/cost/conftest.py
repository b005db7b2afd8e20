"""Requests and runs small enough for a test."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reports.cost_record import CostRecord
from verify.cost.ranks import OneRank
from verify.cost.request import CostOptions, PreparedCost, prepare_cost
from verify.cost.run import RunPlace, run_cost

SMALLEST: dict[str, Any] = {
    "model": "tiny",
    "layers": 1,
    "paths": ("padded", "dense", "split"),
    "sweep": (),
    "regimes": ("balanced",),
    "steps": 2,
    "pairs": 1,
    "held_out": 0,
    "threads": 1,
    "lr": 1e-3,
}


def prepared(**options: Any) -> PreparedCost:
    return prepare_cost(CostOptions(**{**SMALLEST, **options}), num_ranks=1, device=None)


def place(**changes: Any) -> RunPlace:
    settings: dict[str, Any] = {
        "ranks": OneRank(),
        "progress": lambda done, total, text: None,
        "command": ["packparity", "cost"],
        "started": time.perf_counter(),
    }
    return RunPlace(**{**settings, **changes})


@pytest.fixture(scope="session", autouse=True)
def _imports_are_not_collected() -> Iterator[None]:
    """Garbage is collected before each step, which walks all that was imported; a command line freezes that too."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def run() -> Callable[..., CostRecord]:
    """Run with the smallest options, changed as given; ``place`` changes the place."""

    def call(place_changes: dict[str, Any] | None = None, **options: Any) -> CostRecord:
        return run_cost(prepared(**options), place(**(place_changes or {})))

    return call

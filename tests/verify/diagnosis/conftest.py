"""A bench with the tiny model, a catalogue of a few faults, and the wrong trainers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from verify.diagnosis.diagnose import Diagnosis, Diagnostician
from verify.diagnosis.study import Workbench
from verify.faults.catalogue import FAULTS
from verify.faults.fault import Fault
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.subject import Subject
from verify.tolerance import Policy

_WRONG = Path(__file__).with_name("wrong_subjects.py")
_WRONG_TREES = Path(__file__).with_name("wrong_tree_trainers.py")
_FEW = (
    "causal-mask-only",
    "positions-run-on",
    "neighbour-predicts",
    "mean-instead-of-sum",
    "reference-with-adapters-on",
    "beta-missing",
)


@pytest.fixture(scope="session")
def few_faults() -> tuple[Fault, ...]:
    """The whole catalogue takes a quarter of a minute."""
    return tuple(fault for fault in FAULTS if fault.name in _FEW)


@pytest.fixture(scope="session")
def bench(policy: Policy, few_faults: tuple[Fault, ...]) -> Workbench:
    return Workbench(
        request=ModelRequest(name="tiny", lora=LoraSpec(strength=0.3)),
        dtype="float32",
        objective=Preference(beta=0.1, label_smoothing=0.1),
        policy=policy,
        seed=0,
        variations=("eager", "padded-left"),
        faults=few_faults,
    )


@pytest.fixture(scope="session")
def diagnostician(bench: Workbench) -> Diagnostician:
    """One for all tests, since it keeps what it knows about a case."""
    return Diagnostician(bench)


def _classes_of(file: Path) -> Callable[[str], Any]:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make: Callable[[str], Subject] = cache(lambda name: getattr(module, name)())
    return make


@pytest.fixture(scope="session")
def wrong() -> Callable[[str], Any]:
    """A trainer of ``wrong_subjects`` by the name of its class."""
    return _classes_of(_WRONG)


@pytest.fixture(scope="session")
def wrong_tree() -> Callable[[str], Any]:
    """A trainer of ``wrong_tree_trainers`` by the name of its class."""
    return _classes_of(_WRONG_TREES)


@pytest.fixture(scope="session")
def diagnosed(diagnostician: Diagnostician, wrong: Callable[[str], Any]) -> Callable[[str], Diagnosis]:
    """The diagnosis of a wrong trainer, made once."""
    return cache(lambda name: diagnostician.diagnose(wrong(name), []))

"""Subjects that are wrong in one respect, and one way to put a subject to the checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from verify.checks.bench import Setting
from verify.checks.cases import CheckCases
from verify.checks.catalogue import EXACT_CHECKS
from verify.checks.check import ExactCheck, Finding
from verify.checks.run import measure_setting, run_checks
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.subject import Subject
from verify.subjects.packed import PackedSubject
from verify.tolerance import load_policy
from verify.verdict import Verdict

Groups = Sequence[PreferenceGroup]
HONEST = PackedSubject(backend="dense-sdpa")
_WORST_LAST = (Verdict.NOT_APPLICABLE, Verdict.PASS, Verdict.FAIL, Verdict.ERROR)
OBJECTIVE = Preference(beta=0.3, label_smoothing=0.1)


@dataclass(frozen=True)
class Altered:
    """The honest packed step, with its log-probs changed on the way out."""

    alter: Callable[[list[Tensor], Groups], list[Tensor]]
    name: str = "altered"

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        return self.alter(HONEST.per_token_logps(model, groups), groups)


@cache
def _holder(dtype: str) -> ModelHolder:
    return ModelHolder(ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)), dtype)


@cache
def _setting(dtype: str) -> Setting:
    return measure_setting(
        EXACT_CHECKS, _holder(dtype), dtype=dtype, objective=OBJECTIVE, policy=load_policy(None), seed=0
    )


@pytest.fixture(scope="session")
def holder() -> ModelHolder:
    """The tiny model cut to one layer, in float32, as the gate holds it."""
    return _holder("float32")


@pytest.fixture(scope="session")
def setting() -> Setting:
    return _setting("float32")


@pytest.fixture(scope="session")
def cases() -> CheckCases:
    return _setting("float32").cases


@pytest.fixture(scope="session")
def altered() -> Callable[[Callable[[list[Tensor], Groups], list[Tensor]]], Subject]:
    return Altered


@pytest.fixture(scope="session")
def put() -> Callable[..., dict[str, Finding]]:
    """Put a subject to checks; findings by check, the worst of several cases."""

    def run(
        subject: Subject, checks: Sequence[ExactCheck] = EXACT_CHECKS, dtype: str = "float32"
    ) -> dict[str, Finding]:
        torch.set_num_threads(1)
        findings: dict[str, Finding] = {}
        for finding in run_checks(subject, checks, _setting(dtype), _holder(dtype)):
            known = findings.get(finding.check)
            if known is None or _WORST_LAST.index(finding.verdict) > _WORST_LAST.index(known.verdict):
                findings[finding.check] = finding
        return findings

    return run

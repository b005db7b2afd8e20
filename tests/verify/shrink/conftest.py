"""A run of the gate that fails, and what shrinking makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from verify.cases import Case
from verify.gate import GateRequest, run_gate
from verify.models.configs import named_config
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference
from verify.shrink.reproduction import Setting
from verify.shrink.run import Effort, Reproduction, shrink_failures
from verify.subjects.selection import select_subject
from verify.tolerance import load_policy

Shrink = Callable[..., tuple[Reproduction, ...]]

SMALLEST = replace(
    named_config("tiny"), num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=8, hidden_size=8,
    intermediate_size=8,
)  # fmt: skip
"""So small that only tokens are left to shrink: every trial costs two tenths of a second."""


@pytest.fixture
def shrink(tmp_path: Path) -> Shrink:
    """Run subjects on cases, on the smallest model, and shrink what fails."""

    def run(names: Sequence[str], cases: Sequence[Case], **changes: Any) -> tuple[Reproduction, ...]:
        subjects = [select_subject(name) for name in names]
        request = GateRequest(
            model=changes.pop("model", ModelRequest(name="smallest", config=SMALLEST, lora=LoraSpec(strength=0.3))),
            dtypes=("float32",),
            subjects=tuple(subjects),
            cases=tuple(cases),
            objective=changes.pop("objective", Preference(beta=0.3)),
            policy=load_policy(None),
            variations=("eager",),
        )
        setting = Setting(request=request, policy_file=None, threads=1, versions={"torch": "2"})
        return shrink_failures(
            setting,
            run_gate(request, lambda done, total, text: None).results,
            named={subject.name: name for subject, name in zip(subjects, names, strict=True)},
            out_dir=changes.pop("out_dir", tmp_path),
            effort=Effort(**({"seconds": 600.0, "trial_s": 1.0} | changes.pop("effort", {}))),
            progress=changes.pop("progress", lambda done, total, text: None),
        )

    return run

"""A parity record is cited for what it judged, and for nothing else."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports.store import RecordError
from verify.cost.parity_evidence import EvidenceError, MeasuredSubject, ParityFile, cite, read_parity

KEPT = Path(__file__).resolve().parents[3] / "docs" / "results" / "qwen3-0.6b-synthetic"


@pytest.fixture(scope="module")
def parity() -> ParityFile:
    return read_parity(KEPT)


@pytest.fixture
def measured(parity: ParityFile) -> MeasuredSubject:
    """The very thing that the record judged."""
    record = parity.record
    return MeasuredSubject(environment=record.environment, model=record.model, dtype="float32", objective="sigmoid")


def test_what_was_judged_is_cited_with_the_digest_of_its_record(parity: ParityFile, measured: MeasuredSubject) -> None:
    cited = cite(parity, measured, ["split", "dense-sdpa"])
    assert cited["split"].record_sha256 == hashlib.sha256((KEPT / "record.json").read_bytes()).hexdigest()
    found = [r.num_compared for r in parity.record.results if r.subject == "split"]
    assert cited["split"].num_compared == sum(found) > 0


def changed(what: Any, **changes: Any) -> Any:
    return what.model_copy(update=changes)


def another_config(measured: MeasuredSubject, **fields: object) -> MeasuredSubject:
    return replace(measured, model=changed(measured.model, config={**measured.model.config, **fields}))


def another_torch(measured: MeasuredSubject) -> MeasuredSubject:
    packages = {**measured.environment.packages, "torch": "9"}
    return replace(measured, environment=changed(measured.environment, packages=packages))


def on_a_gpu(measured: MeasuredSubject) -> MeasuredSubject:
    return replace(measured, environment=changed(measured.environment, device="cuda:0 (a GPU, CUDA 13)"))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("version of torch", another_torch),
        ("device", on_a_gpu),
        ("number of layers", lambda m: replace(m, model=changed(m.model, num_layers=3))),
        ("model config, hidden_size", lambda m: another_config(m, hidden_size=7)),
        ("model config, new_field", lambda m: another_config(m, new_field=1)),
        ("LoRA config, rank", lambda m: replace(m, model=changed(m.model, lora={**m.model.lora, "rank": 64}))),
        ("objective", lambda m: replace(m, objective="ipo")),
    ],
)
def test_the_field_that_differs_is_named(
    parity: ParityFile, measured: MeasuredSubject, field: str, change: Any
) -> None:
    with pytest.raises(EvidenceError, match=f"its {re.escape(field)} is .* it says nothing about this run"):
        cite(parity, change(measured), ["split"])


def test_a_subject_or_dtype_that_was_not_judged_is_refused_with_how_to_judge_it(
    parity: ParityFile, measured: MeasuredSubject
) -> None:
    with pytest.raises(
        EvidenceError, match=r"subject flex in float32 is not in it.*packparity check .* --subject flex"
    ):
        cite(parity, measured, ["split", "flex"])
    with pytest.raises(EvidenceError, match="subject split in bfloat16 is not in it"):
        cite(parity, replace(measured, dtype="bfloat16"), ["split"])


def test_a_record_that_is_no_pass_is_no_evidence(parity: ParityFile, measured: MeasuredSubject) -> None:
    failed = replace(parity, record=changed(parity.record, verdict="INCONCLUSIVE"))
    with pytest.raises(EvidenceError, match="its verdict is INCONCLUSIVE"):
        cite(failed, measured, ["split"])


def test_the_number_of_a_gpu_is_no_difference(parity: ParityFile, measured: MeasuredSubject) -> None:
    first, second = (changed(parity.record.environment, device=f"cuda:{i} (a GPU, CUDA 13)") for i in (0, 1))
    there = replace(parity, record=changed(parity.record, environment=first))
    assert cite(there, replace(measured, environment=second), ["split"])


def test_no_record_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no record\.json"):
        read_parity(tmp_path)

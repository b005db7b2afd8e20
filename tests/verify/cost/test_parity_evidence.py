"""A parity record is cited for what it judged, and for nothing else."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports.record_setting import SubjectRecord
from reports.sharded_record import (
    AGAINST,
    CheckRecord,
    HeldRecord,
    ParityRecord,
    PlantedFaultRecord,
    PrecisionRecord,
    ScenarioRecord,
    ShardedRecord,
)
from reports.sharded_store import write_sharded
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


def test_how_far_adapters_have_moved_is_no_difference(parity: ParityFile, measured: MeasuredSubject) -> None:
    lora = {**measured.model.lora, "strength": 0.7}
    assert cite(parity, replace(measured, model=changed(measured.model, lora=lora)), ["split"])


def test_no_record_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no record\.json"):
        read_parity(tmp_path)


@pytest.fixture
def sharded(parity: ParityFile, tmp_path: Path) -> ParityFile:
    """A sharded run on the same model, as it is read again: one batch of pairs, and one of examples."""
    record = parity.record
    judgement = next(j for r in record.results for j in r.judgements if j.verdict == "PASS")
    held = [HeldRecord(against=against, judgement=judgement) for against in AGAINST]
    ran = ParityRecord(
        scenario="real-pairs-0", subject="split", precision="float32", verdict="PASS", reasons=[], micro_size=2,
        groups_of_ranks=[3, 2], dummies_of_ranks=[0, 0], num_compared=3 * judgement.num_compared,
        worst_ratio=judgement.measured / judgement.budget, held=held,
    )  # fmt: skip
    no = {"verdict": "NOT_APPLICABLE", "reasons": ["no"], "num_compared": 0, "worst_ratio": None, "held": []}
    results = [
        ran,
        changed(ran, scenario="examples", **no),
        changed(ran, subject="split/block-diagonal", **no),
        changed(ran, scenario="examples", subject="split/block-diagonal"),
    ]
    failed = CheckRecord(
        check="clip", precision="float32", subject="split", verdict="FAIL", num_compared=1, ratio=9.0, worst="norm"
    )
    passed = changed(failed, verdict="PASS", ratio=0.5, worst="")
    planted = PlantedFaultRecord(fault="x", what="y", precision="float32", caught_by=["clip"], checks=[failed])
    pairs = changed(record.cases[0], name="real-pairs-0", groups=[record.cases[0].groups[0]] * 5)
    split = SubjectRecord(name="split", layout="packed", owns_loss=False)
    of_examples = changed(
        pairs,
        name="examples",
        objective="sft-token-mean",
        groups=[changed(group, negatives=[], supervised=None) for group in pairs.groups],
    )
    written = ShardedRecord(
        schema_version=1, tool_version=record.tool_version, created_utc="2026", command=[], verdict="PASS", reasons=[],
        world_size=2, backend="gloo", started_by="local ranks", environment=record.environment, model=record.model,
        precisions=[PrecisionRecord(name="float32", weights="float32", computes="float32", reduces="float32")],
        cases=[pairs, of_examples], subjects=[split, changed(split, name="split/block-diagonal")], parity=results,
        checks=[passed], planted=[planted], harmless=[],
        scenarios=[ScenarioRecord(name=name, case=name, micro_size=2, reference="adapters-off")
                   for name in ("real-pairs-0", "examples")],
        policy={}, seeds={}, notes=[], total_s=1.0,
    )  # fmt: skip
    write_sharded(written, tmp_path)
    return read_parity(tmp_path)


def test_a_run_on_ranks_cites_what_was_judged_on_ranks(sharded: ParityFile, measured: MeasuredSubject) -> None:
    cited = cite(sharded, replace(measured, num_ranks=4), ["split"])["split"]
    result = sharded.record.parity[0]  # type: ignore[union-attr]
    assert (cited.world_size, cited.cases, cited.num_compared) == (2, 1, result.num_compared)
    assert cited.record_sha256 == hashlib.sha256(sharded.path.read_bytes()).hexdigest()


def test_what_was_judged_in_one_process_is_no_evidence_for_ranks_nor_the_other_way_round(
    parity: ParityFile, sharded: ParityFile, measured: MeasuredSubject
) -> None:
    with pytest.raises(EvidenceError, match=r"its sharding is FSDP2 over 2 ranks, that of this run is none.* check "):
        cite(sharded, measured, ["split"])
    with pytest.raises(EvidenceError, match=r"its sharding is none, .* sharded --ranks 2 .*--subject split --out DIR"):
        cite(parity, replace(measured, num_ranks=2), ["split"])


def test_of_a_sharded_record_only_what_ran_under_the_objective_counts(
    sharded: ParityFile, measured: MeasuredSubject
) -> None:
    on_ranks = replace(measured, num_ranks=2)
    with pytest.raises(EvidenceError, match="split/block-diagonal in float32 is NOT_APPLICABLE"):
        cite(sharded, on_ranks, ["split/block-diagonal"])
    with pytest.raises(EvidenceError, match="subject split in bfloat16 is not in it"):
        cite(sharded, replace(on_ranks, dtype="bfloat16"), ["split"])
    with pytest.raises(EvidenceError, match="its objective is sft-token-mean, sigmoid, that of this run is ipo"):
        cite(sharded, replace(on_ranks, objective="ipo"), ["split"])
    with pytest.raises(EvidenceError, match="its version of torch is"):
        cite(sharded, another_torch(on_ranks), ["split"])


def test_a_folder_with_two_records_is_not_guessed_about(tmp_path: Path) -> None:
    for name in ("record.json", "sharded.json"):
        (tmp_path / name).touch()
    with pytest.raises(RecordError, match=r"holds record\.json and sharded\.json: name the file"):
        read_parity(tmp_path)


OF_COST = {"name": "sigmoid", "beta": 0.1, "label_smoothing": 0.0, "nll_weight": 0.0, "reference": "adapters-off"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"reference": "frozen-adapter"}, "its frozen policy is frozen-adapter, that of this run is adapters-off"),
        ({"label_smoothing": 0.1}, r"its label_smoothing is 0\.1, that of this run is 0\.0"),
        ({"nll_weight": 1.0}, r"its nll_weight is 1\.0, that of this run is 0\.0"),
    ],
)
def test_another_loss_or_frozen_policy_is_no_evidence(
    parity: ParityFile, sharded: ParityFile, measured: MeasuredSubject, other: dict[str, Any], message: str
) -> None:
    of_settings = replace(measured, settings=OF_COST)
    for file, run in ((parity, of_settings), (sharded, replace(of_settings, num_ranks=2))):
        same, beta, another = (
            replace(file, record=changed(file.record, objective={**OF_COST, **changes}))
            for changes in ({}, {"beta": 0.5}, other)
        )
        assert cite(same, run, ["split"])
        assert cite(beta, run, ["split"])
        with pytest.raises(EvidenceError, match=message):
            cite(another, run, ["split"])


def test_of_a_sharded_record_without_an_objective_the_frozen_policy_is_that_of_its_scenarios(
    sharded: ParityFile, measured: MeasuredSubject
) -> None:
    run = replace(measured, settings=OF_COST, num_ranks=2)
    assert cite(sharded, run, ["split"])
    scenarios = [changed(each, reference="separate-model") for each in sharded.record.scenarios]  # type: ignore[union-attr]
    with pytest.raises(EvidenceError, match="its frozen policy is separate-model"):
        cite(replace(sharded, record=changed(sharded.record, scenarios=scenarios)), run, ["split"])

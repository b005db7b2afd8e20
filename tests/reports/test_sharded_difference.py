"""Two results of sharded parity side by side: what changed is named; another kind is refused by its own name."""

from __future__ import annotations

import pytest

from reports.difference import Change, compare
from reports.record import Record
from reports.record_setting import SubjectRecord
from reports.sharded_record import (
    CheckRecord,
    HarmlessRecord,
    HeldRecord,
    ParityRecord,
    PlantedFaultRecord,
    PrecisionRecord,
    ScenarioRecord,
    ShardedRecord,
)
from reports.store import RecordError


def sharded_record(record: Record, *, ratio: float = 0.2, caught: bool = True, world_size: int = 2) -> ShardedRecord:
    check = CheckRecord(
        check="clip", precision="float32", subject="split", verdict="PASS", num_compared=3, ratio=ratio, worst=""
    )
    found = next(j for result in record.results for j in result.judgements if j.measured is not None)
    judgement = found.model_copy(update={"verdict": "FAIL", "reason": "too far", "num_compared": 7,
                                         "measured": 1.5, "budget": 1.0})  # fmt: skip
    parity = ParityRecord(
        scenario="uneven-over-ranks", subject="split", precision="float32", verdict="FAIL", reasons=["too far"],
        micro_size=2, groups_of_ranks=[1] * world_size, dummies_of_ranks=[0] * world_size,
        num_compared=7, worst_ratio=1.5,
        held=[HeldRecord(against="oracle", judgement=judgement)],
    )  # fmt: skip
    failed = CheckRecord(
        check="clip", precision="float32", subject="split", verdict="FAIL", num_compared=3, ratio=9.0, worst="norm"
    )
    planted = PlantedFaultRecord(
        fault="world-size",
        what="a mean",
        precision="float32",
        caught_by=["clip"] if caught else [],
        checks=[failed] if caught else [],
    )
    harmless = HarmlessRecord(change="reverse", what="order", precision="float32", flagged_by=[], checks=[])
    return ShardedRecord(
        schema_version=1, tool_version="1", created_utc="now", command=[], verdict="FAIL", reasons=["too far"],
        world_size=world_size, backend="gloo", started_by="local ranks", environment=record.environment,
        model=record.model, precisions=[PrecisionRecord(name="float32", weights="a", computes="a", reduces="a")],
        cases=[record.cases[0].model_copy(update={"name": "uneven"})],
        scenarios=[ScenarioRecord(name="uneven-over-ranks", case="uneven", micro_size=2, reference="adapters-off")],
        subjects=[SubjectRecord(name="split", layout="packed", owns_loss=False)],
        parity=[parity], checks=[check], planted=[planted], harmless=[harmless],
        policy={}, seeds={"weights": 0}, notes=[], total_s=1.0,
    )  # fmt: skip


def test_a_sharded_result_does_not_differ_from_itself(record: Record) -> None:
    sharded = sharded_record(record)
    difference = compare(sharded, sharded)
    assert (difference.settings, difference.verdicts, difference.moved) == ((), (), ())
    assert (difference.num_verdicts, len(difference.ratios)) == (5, 2)


def test_what_changed_between_sharded_results_is_named(record: Record) -> None:
    difference = compare(sharded_record(record), sharded_record(record, ratio=0.9, caught=False, world_size=4))
    assert difference.settings == (Change("world_size", "2", "4"),)
    assert difference.verdicts == (Change("planted world-size, float32", "caught", "not caught"),)
    (moved,) = difference.moved
    assert (moved.what, moved.before, moved.after) == ("clip, float32", 0.2, 0.9)


def test_a_sharded_result_is_refused_by_its_own_name_beside_another(record: Record) -> None:
    with pytest.raises(RecordError, match="a record of packparity check and a record of packparity sharded cannot"):
        compare(record, sharded_record(record))

from __future__ import annotations

import math

import pytest

from reports.detection import caught, families, margin, missed, unseen
from reports.record import Record
from reports.record_faults import BlindSpotRecord, PlantedRecord


def test_what_was_caught_is_counted_with_its_stages_and_the_least_margin(
    record: Record, passing_record: Record
) -> None:
    assert caught(passing_record) == "4 of 4 planted faults in 4 stages, each at least 43.4x its budget"
    assert caught(record) == "3 of 4 planted faults in 3 stages, each at least 43.4x its budget"
    assert [planted.fault for planted in missed(record)] == ["neighbour-predicts"]
    assert missed(passing_record) == ()


def test_dtypes_are_named_where_there_are_several(passing_record: Record) -> None:
    twice = [p.model_copy(update={"dtype": dtype}) for dtype in ("float64", "float32") for p in passing_record.planted]
    line = caught(passing_record.model_copy(update={"planted": twice}))
    assert line.startswith("8 of 8 planted faults (float64, float32) in 4 stages")


def test_faults_without_a_number_give_no_least_margin(passing_record: Record) -> None:
    (without,) = (p for p in passing_record.planted if math.isinf(p.margin))
    assert caught(passing_record.model_copy(update={"planted": [without]})) == "1 of 1 planted fault in 1 stage"


def test_a_run_that_planted_nothing_says_so(passing_record: Record) -> None:
    assert caught(passing_record.model_copy(update={"planted": []})) == "no fault was planted in this run"


@pytest.mark.parametrize(
    ("family", "shown"), [("log-probs", "0.300"), ("packed path ran", "caught"), ("gradients", "-")]
)
def test_a_margin_is_a_number_where_the_check_has_a_budget(passing_record: Record, family: str, shown: str) -> None:
    fallback = next(p for p in passing_record.planted if p.fault == "falls-back-to-unpacked")
    assert margin(fallback, family) == shown


def test_families_come_in_one_order_and_unknown_ones_last(passing_record: Record) -> None:
    first = passing_record.planted[0].model_copy(update={"margins": {"isolation": math.inf, "gradients": 1.0}})
    faults = [first, *passing_record.planted]
    assert families(passing_record.model_copy(update={"planted": faults})) == (
        "log-probs", "rewards, margins, loss", "gradients", "packed path ran", "isolation",
    )  # fmt: skip


def test_kinds_of_unseen_faults_are_named_by_how_many_they_are(passing_record: Record) -> None:
    spots = [BlindSpotRecord(what=f"kind {n}", why="", faults=["f"] * n) for n in (1, 3, 0, 2)]
    record = passing_record.model_copy(update={"blind_spots": spots})
    assert unseen(record, 9) == "kind 3 (3); kind 2 (2); kind 1 (1); kind 0"
    assert unseen(record, 2) == "kind 3 (3); kind 2 (2); 2 kinds more, in the report that --out writes"
    assert unseen(record.model_copy(update={"blind_spots": []}), 2) == ""


@pytest.mark.parametrize("changes", [{"killed": True, "caught_by": []}, {"killed": False, "caught_by": ["log-probs"]}])
def test_a_fault_is_caught_by_something_or_not_caught(passing_record: Record, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="killed is"):
        PlantedRecord.model_validate(passing_record.planted[0].model_dump() | changes)


def test_a_run_cannot_pass_beside_a_planted_fault_that_survived(record: Record, passing_record: Record) -> None:
    survivors = [p.model_dump() for p in missed(record)]
    with pytest.raises(ValueError, match="the run is PASS, but planted faults survived it: neighbour-predicts"):
        Record.model_validate(passing_record.model_dump() | {"planted": survivors})

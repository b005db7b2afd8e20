"""What a record is held to by its own notes is in the words that a run writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from reports.consistency import HIDDEN, PLANTED_NOTE
from verify.faults.catalogue import FAULTS
from verify.proof_of_life.blind_spots import _of_precision
from verify.proof_of_life.findings import notes_of


def test_the_note_of_planted_faults_is_recognised() -> None:
    chosen = [SimpleNamespace(subject=SimpleNamespace(gradients=False))] * 7
    plantings = cast(Any, SimpleNamespace(chosen=chosen, cost=0.02, left_out={"one": "no case"}))
    found = [match[1] for match in map(PLANTED_NOTE.match, notes_of(plantings)) if match]
    assert found == ["7"]


def test_the_blind_spot_of_what_rounding_hid_is_recognised() -> None:
    (spot,) = _of_precision(FAULTS, ("float64",), [("float64", "one"), ("float64", "two"), ("bfloat16", "three")])
    assert spot.why.startswith(HIDDEN)
    assert spot.why.removeprefix(HIDDEN).split(", ") == ["one", "two"]

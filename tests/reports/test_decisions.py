"""The line of decisions counts every pair of every case alike."""

from __future__ import annotations

from reports.decisions import decisions_line
from reports.record import Record
from reports.record_results import DecisionsRecord


def test_accuracy_is_over_pairs_and_not_over_cases(record: Record) -> None:
    """Three pairs of one case, of which one is right, and one of another, which is tied."""
    first, second = (
        DecisionsRecord(num_pairs=3, flipped=1, ties=0, halves_right=2, expected_halves_right=4),
        DecisionsRecord(num_pairs=1, flipped=1, ties=1, halves_right=1, expected_halves_right=2),
    )
    results = [result.model_copy(update={"decisions": None}) for result in record.results]
    assert decisions_line(record.model_copy(update={"results": results})) == ""
    results[0], results[1] = (
        results[0].model_copy(update={"decisions": first}), results[1].model_copy(update={"decisions": second}),
    )  # fmt: skip
    assert decisions_line(record.model_copy(update={"results": results})) == (
        "decisions: 2 of 4 flipped between packed and unpacked; reward accuracy 0.3750 packed, 0.7500 unpacked; "
        "1 tie, each one half"
    )

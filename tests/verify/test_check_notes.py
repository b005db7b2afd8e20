"""Notes of a request: what its reader must know, and nothing of subjects that did not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from verify.check_notes import notes_of
from verify.check_request import CheckOptions, prepare_check

THIRD_PARTY = Path(__file__).with_name("third_party_subjects.py")


@pytest.mark.parametrize(
    ("subject", "named"),
    [("dense-eager", True), ("dense-sdpa", False), (f"{THIRD_PARTY}:ByHand", False)],
)
def test_subjects_of_ours_that_ran_no_optimizer_steps_are_a_note_only_where_one_was_judged(
    subject: str, named: bool
) -> None:
    (note,) = (
        note
        for note in notes_of(prepare_check(CheckOptions(cases=("balanced",), subjects=(subject,), jobs=1)), 2)
        if "optimizer-steps" in note
    )
    assert ("dense-sdpa and split alone" in note) is named

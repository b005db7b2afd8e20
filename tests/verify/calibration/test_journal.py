"""The journal: what is there is gone on with, if it is whole and of the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.calibration import BatchRecord
from verify.calibration.journal import JOURNAL_FILE, Journal, JournalSettings

Make = Callable[..., BatchRecord]


def settings(**changes: Any) -> JournalSettings:
    plain: dict[str, Any] = {
        "seed": 0,
        "dtypes": ["float32"],
        "policy": {"factor": 3.0},
        "variations": ["eager"],
        "versions": {"torch": "2.13.0", "hypothesis": "6.170.17"},
    }
    return JournalSettings(**(plain | changes))


@pytest.fixture
def begun(tmp_path: Path, make_batch: Make) -> Path:
    journal = Journal(tmp_path, settings())
    journal.start()
    for number in range(3):
        journal.append(make_batch(number, [0.2, 0.1 * number], [50.0]))
    return tmp_path


def test_batches_come_back_as_they_were(begun: Path, make_batch: Make) -> None:
    journal = Journal(begun, settings())
    assert journal.resume() == 3
    assert list(journal.batches(2)) == [make_batch(n, [0.2, 0.1 * n], [50.0]) for n in range(2)]
    assert len(list(journal.batches(9))) == 3


@pytest.mark.parametrize("cut", [1, 20, 500])
def test_a_line_that_was_cut_off_is_dropped(begun: Path, make_batch: Make, cut: int) -> None:
    path = begun / JOURNAL_FILE
    path.write_bytes(path.read_bytes()[:-cut])
    journal = Journal(begun, settings())
    assert journal.resume() == 2
    journal.append(make_batch(2, [0.3], [4.0]))
    assert Journal(begun, settings()).resume() == 3


def test_a_journal_that_was_cut_off_in_its_settings_begins_anew(begun: Path) -> None:
    path = begun / JOURNAL_FILE
    path.write_bytes(path.read_bytes()[:10])
    assert Journal(begun, settings()).resume() == 0
    assert Journal(begun, settings()).resume() == 0


def test_an_earlier_journal_is_not_overwritten(begun: Path) -> None:
    with pytest.raises(ValueError, match=r"calibration.jsonl is there from an earlier run: give --resume"):
        Journal(begun, settings()).start()


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--resume: there is no .*calibration.jsonl; leave --resume out"):
        Journal(tmp_path, settings()).resume()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "begun with another seed: 0, now 1"),
        ({"dtypes": ["float64"]}, r'begun with another dtypes: \["float32"\], now \["float64"\]'),
        ({"policy": {"factor": 2.0}}, r'begun with another policy: {"factor": 3.0}, now {"factor": 2.0}'),
        (
            {"versions": {"torch": "2.14.0", "hypothesis": "6.170.17"}},
            r'begun with another versions: {"torch": "2.13.0"}, now {"torch": "2.14.0"}',
        ),
    ],
)
def test_a_journal_of_another_run_is_refused(begun: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Journal(begun, settings(**changes)).resume()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"number":1', '"number":2', "line 3: batch 2 where 1 is due"),
        ('"number":1', '"numero":1', "line 3: not a batch: number: field is missing; numero: unknown field"),
        ('"seed":0', '"seed":"x"', "line 1: not the settings of a calibration: seed"),
    ],
)
def test_a_damaged_journal_is_refused_by_line(begun: Path, old: str, new: str, message: str) -> None:
    path = begun / JOURNAL_FILE
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Journal(begun, settings()).resume()

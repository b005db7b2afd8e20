"""A journal holds what was written whole, and says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.cost_record import HeldOutRecord, StepRecord
from reports.store import RecordError
from verify.cost.journal import JOURNAL_FILE, Done, Journal, JournalSettings

SETTINGS = JournalSettings(options={"steps": 2}, versions={"torch": "2"}, machine={"cores": 2})


def step(path: str, round_number: int = 0, **changes: Any) -> StepRecord:
    fields: dict[str, Any] = {
        "phase": "measured", "session": 0, "round": round_number, "place": 0, "path": path, "rank": 0, "elapsed_ns": 5,
        "cpu_ns": 3, "graphs_compiled": 0, "loss": 0.5, "held_bytes": 1, "peak_bytes": 2, "reserved_bytes": None,
        "host_peak_bytes": None,
    }  # fmt: skip
    return StepRecord(**{**fields, **changes})


HELD_OUT = HeldOutRecord(when="end", path="split", loss=0.1 + 0.2, margins=[1e-17, -0.0])


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path, SETTINGS)
    journal.start()
    return journal


def test_what_was_written_is_read_bit_for_bit(journal: Journal) -> None:
    journal.add_steps(0, [step("padded", loss=0.1 + 0.2)])
    journal.add_held_out(1, [HELD_OUT])
    done = journal.resume()
    assert done == {0: Done([step("padded", loss=0.1 + 0.2)]), 1: Done([], [HELD_OUT])}


def test_what_ends_a_line_elsewhere_ends_none_here(tmp_path: Path) -> None:
    """A file of data may be called anything."""
    names = {"file": "pairs\u2028of\u0085two\x0b.jsonl"}
    journal = Journal(tmp_path, SETTINGS.model_copy(update={"options": names}))
    journal.start()
    journal.add_steps(0, [step("padded")])
    assert journal.resume() == {0: Done([step("padded")])}


def test_a_line_that_was_cut_off_is_dropped_and_the_rest_kept(journal: Journal) -> None:
    journal.add_steps(0, [step("padded"), step("split")])
    content = journal.path.read_bytes()
    for cut in range(1, len(content) - content.rstrip().rfind(b"\n") - 1):
        journal.path.write_bytes(content[:-cut])
        assert [s.path for s in journal.resume()[0].steps] == ["padded"]
        assert journal.path.read_bytes().endswith(b"\n")


def test_a_journal_without_a_whole_first_line_is_begun_anew(journal: Journal) -> None:
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:7])
    assert journal.resume() == {}
    assert journal.path.read_bytes() == whole


def test_a_step_that_was_measured_again_counts_anew() -> None:
    done = Done()
    for each in (step("padded"), step("split"), step("padded", session=1), step("padded", phase="warm-up")):
        done.add(each)
    assert [(s.path, s.session) for s in done.steps if s.phase == "measured"] == [("split", 0), ("padded", 1)]


def test_what_was_held_out_again_counts_anew(journal: Journal) -> None:
    """An interruption may leave the results of some paths; all are computed again and written behind them."""
    other = HELD_OUT.model_copy(update={"path": "padded"})
    journal.add_held_out(0, [HELD_OUT])
    journal.add_held_out(0, [other, HELD_OUT])
    assert journal.resume()[0].held_out == [other, HELD_OUT]


def test_a_round_is_done_when_every_path_and_rank_is_there() -> None:
    shape = {"num_paths": 2, "num_ranks": 2}
    done = Done([step(path, number, rank=rank) for number in (0, 1) for path in ("padded", "split") for rank in (0, 1)])
    assert done.rounds(**shape) == 2
    assert Done(done.steps[:-1]).rounds(**shape) == 1
    assert Done(done.steps[1:]).rounds(**shape) == 0
    assert done.is_over(num_rounds=2, holds_out=False, **shape)
    assert not done.is_over(num_rounds=2, holds_out=True, **shape)


def test_a_bit_that_flipped_anywhere_is_named_by_its_line(journal: Journal) -> None:
    """Also one that leaves a step that could have been: 5 ns become 4."""
    journal.add_steps(0, [step("padded"), step("split")])
    journal.add_held_out(0, [HELD_OUT])
    whole = journal.path.read_bytes()
    assert b'"elapsed_ns":5' in whole
    for place in range(0, len(whole), 7):
        damaged = bytes([whole[place] ^ 1])
        if b"\n" in (damaged, whole[place : place + 1]):
            continue
        journal.path.write_bytes(whole[:place] + damaged + whole[place + 1 :])
        number = whole[:place].count(b"\n") + 1
        with pytest.raises(RecordError, match=rf"{JOURNAL_FILE}, line {number}: damaged, or written by another"):
            journal.resume()


def test_a_line_that_is_whole_but_no_step_is_refused(journal: Journal) -> None:
    journal._write(['{"workload":0,"stop":null}'], "a")
    with pytest.raises(RecordError, match=rf"{JOURNAL_FILE}, line 2: not a step or a held-out result"):
        journal.resume()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"steps": 3}}, "another steps: 2, now 3"),
        ({"versions": {"torch": "3"}}, 'another torch: "2", now "3"'),
        ({"machine": {"cores": 4}}, "another cores: 2, now 4"),
    ],
)
def test_what_differs_from_the_begun_run_is_named(journal: Journal, changes: dict[str, Any], message: str) -> None:
    other = Journal(journal.path.parent, SETTINGS.model_copy(update=changes))
    with pytest.raises(RecordError, match=message):
        other.resume()

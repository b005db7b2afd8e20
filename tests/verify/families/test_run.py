"""A family that ends its process or never ends is a line of the table, not the end of the run."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import pytest

from reports.families_record import FamilyRecord
from verify.cli import app
from verify.families.run import measure, measure_apart

CONTEXT = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")


def test_a_process_that_ends_is_a_crash() -> None:
    def crash(model_type: str, seed: int, sender: Any) -> None:
        sender.send_bytes(b"begun")
        os._exit(11)

    found = measure_apart(CONTEXT, "qwen3", 0, 60.0, crash)
    assert (found.state, found.reason) == ("crashed", "its process ended with status 11")


def test_a_process_that_does_not_end_is_given_up() -> None:
    def hang(model_type: str, seed: int, sender: Any) -> None:
        sender.send_bytes(b"begun")
        time.sleep(60)

    found = measure_apart(CONTEXT, "qwen3", 0, 0.2, hang)
    assert (found.state, found.reason) == ("timed-out", "not done after 0.2 s")


def test_what_a_process_measured_arrives_as_it_was() -> None:
    expected = measure("qwen3", seed=0)

    def send(model_type: str, seed: int, sender: Any) -> None:
        sender.send_bytes(b"begun")
        sender.send_bytes(expected.model_dump_json().encode())

    assert measure_apart(CONTEXT, "qwen3", 0, 60.0, send) == expected
    assert isinstance(expected, FamilyRecord)
    assert expected.outcome("no-mask") == "isolated"


def test_an_unknown_family_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["packparity", "families", "--family", "qwne3", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("packparity: error: unknown model family 'qwne3': did you mean qwen3")

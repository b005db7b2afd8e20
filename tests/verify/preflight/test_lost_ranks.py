"""A rank that is stopped, hangs or dies ends the run with its name, and the others with the same status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SIGKILL = -9


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of two ranks, by scenario."""
    folder = tmp_path_factory.mktemp("lost")
    subprocess.run(
        [sys.executable, str(Path(__file__).with_name("losing_ranks.py")), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=240,
    )
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_a_rank_that_is_stopped_is_named_with_the_probe_that_it_was_in(lost: Any) -> None:
    assert lost["stopped"]["statuses"] == [3, SIGKILL]  # by the launcher: a stopped process does nothing any more
    assert "rank 1 of 2 gave no sign of life for 3 s (rank 1 on" in lost["stopped"]["words"][0]
    assert "in probe attention at" in lost["stopped"]["words"][0]


def test_the_rank_that_keeps_the_store_is_named_by_the_others(lost: Any) -> None:
    assert lost["keeper_stopped"]["statuses"] == [SIGKILL, 3]
    assert "rank 0" in lost["keeper_stopped"]["words"][1]


def test_a_rank_that_hangs_is_named_with_its_line_and_not_the_one_that_waits(lost: Any) -> None:
    assert lost["hangs"]["statuses"] == [3, 3]
    for words in lost["hangs"]["words"]:
        assert "rank 1 of 2 hangs (6 s) (rank 1 on" in words
        assert "in probe data at" in words


def test_what_ended_a_run_is_handed_over_before_the_rank_leaves(lost: Any) -> None:
    assert lost["hangs"]["noted"].split(": ", 1)[1].startswith("rank 1 of 2 hangs")


def test_a_rank_that_was_killed_is_named_though_the_others_are_told_to_end(lost: Any) -> None:
    assert lost["terminated"]["statuses"] == [3, SIGKILL]
    assert "rank 1 of 2" in lost["terminated"]["words"][0]
    assert "rank 0 of 2" not in lost["terminated"]["words"][0]


def test_a_run_that_loses_nobody_ends_by_itself(lost: Any) -> None:
    assert lost["none_lost"] == {"statuses": [0, 0], "words": ["", ""], "noted": ""}

"""Places of ranks, the group that they form, and what is said when one is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import HashStore

from verify.sharded.board import Board, RankLostError
from verify.sharded.ranks import (
    RankPlace,
    place_from_environment,
    process_group,
    ranks_on_this_machine,
    start_local_ranks,
)

ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}

START = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def end(status, message):
    print("packparity:", message, file=sys.stderr)
    sys.exit(status)
"""
GROUP = """
from verify.sharded.board import SaidByRank0Error
from verify.sharded.ranks import place_from_environment, process_group
import torch, torch.distributed as dist
try:
    with process_group(place_from_environment(), 20.0):
        total = torch.tensor(float(rank + 1))
        dist.all_reduce(total)
        if total != 3:
            end(1, "not the sum over the group")
        if rank == 1:
            raise ValueError("row 7 has no prompt")
        dist.barrier()
except ValueError as error:
    end(2, f"error: {error}")
except SaidByRank0Error as error:
    sys.exit(error.status)
"""


def run_ranks(tmp_path: Path, program: str, *, num_ranks: int = 2, timeout_s: float = 60.0) -> int:
    (tmp_path / "program.py").write_text(START + program)
    return start_local_ranks([], num_ranks, timeout_s, program=(str(tmp_path / "program.py"),))


def test_no_variable_of_a_rank_means_no_rank() -> None:
    assert place_from_environment(environment={"PATH": "/bin", "MASTER_PORT": "1"}) is None


def test_the_place_is_read_from_the_environment() -> None:
    assert place_from_environment(environment=ENVIRONMENT) == RankPlace(1, 2, 1, "cpu")
    assert place_from_environment("cuda", ENVIRONMENT) == RankPlace(1, 2, 1, "cuda:1")


@pytest.mark.parametrize("left_out", ENVIRONMENT.keys())
def test_a_place_that_is_half_given_is_refused(left_out: str) -> None:
    environment = {name: value for name, value in ENVIRONMENT.items() if name != left_out}
    with pytest.raises(ValueError, match=f"without {left_out}: start it with torchrun"):
        place_from_environment(environment=environment)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "2", "RANK is 2: expected 0 to 1"),
        ("RANK", "one", "RANK is 'one': expected a number"),
        ("WORLD_SIZE", "0", "WORLD_SIZE is 0"),
        ("LOCAL_RANK", "-1", "LOCAL_RANK is -1"),
        ("MASTER_PORT", "0", "MASTER_PORT is 0"),
    ],
)
def test_a_place_out_of_range_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place_from_environment(environment={**ENVIRONMENT, name: value})


def test_ranks_that_agree_end_with_their_common_status_and_one_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_ranks(tmp_path, "print('row', rank)\nend(2, 'error: no case')") == 2
    assert capfd.readouterr() == ("row 0\n", "packparity: error: no case\n")


def test_ranks_know_how_many_share_their_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = "from verify.sharded.ranks import ranks_on_this_machine\nprint(ranks_on_this_machine())"
    assert run_ranks(tmp_path, program, num_ranks=2) == 0
    assert capfd.readouterr().out == "2\n"
    assert ranks_on_this_machine() == 1


def test_the_first_rank_to_fail_speaks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = "if rank == 1: end(3, 'no memory')\ntime.sleep(1)\nend(2, 'error: the group broke')"
    assert run_ranks(tmp_path, program) == 3
    assert capfd.readouterr().err == "packparity: no memory\n"


def test_what_one_rank_of_a_group_refuses_is_said_once_and_names_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_ranks(tmp_path, GROUP) == 2
    assert capfd.readouterr().err == "packparity: error: rank 1 of 2: row 7 has no prompt\n"


def test_a_rank_that_is_killed_is_named_and_the_others_may_write_what_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verify.sharded.ranks.ANSWER_S", 2.0)
    monkeypatch.setattr("verify.sharded.ranks._LAST_WORDS_S", 0.5)
    program = (
        "if rank == 2: os.kill(os.getpid(), signal.SIGKILL)\nif rank == 1: time.sleep(60)\n"
        f"time.sleep(0.5)\nopen('{tmp_path}/found', 'w').close()\nend(3, 'rank 2 is gone')"
    )
    with pytest.raises(RankLostError, match="rank 2 of 3 was ended by SIGKILL"):
        run_ranks(tmp_path, program, num_ranks=3)
    assert (tmp_path / "found").exists()


def test_a_rank_that_outlives_a_failed_one_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verify.sharded.ranks.ANSWER_S", 0.5)
    monkeypatch.setattr("verify.sharded.ranks._LAST_WORDS_S", 0.5)
    started = time.monotonic()
    assert run_ranks(tmp_path, "if rank == 1: time.sleep(60)\nend(3, 'rank 1 of 2 hangs')") == 3
    assert capfd.readouterr().err == "packparity: rank 1 of 2 hangs\n"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGHUP])
def test_no_rank_outlives_its_launcher(tmp_path: Path, ending: signal.Signals) -> None:
    (tmp_path / "rank.py").write_text(
        "import os, sys, time\nfrom verify.parent_process import end_with_the_launcher\n"
        "end_with_the_launcher()\nassert sys.stdin.read() == ''\nos.write(1, b'running\\n')\ntime.sleep(60)"
    )
    launch = f"from verify.sharded.ranks import *; start_local_ranks([], 2, 60, program=['{tmp_path}/rank.py'])"
    with subprocess.Popen([sys.executable, "-c", launch], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        process.send_signal(ending)
        assert process.stdout.read() == b""  # which rank 0 holds open for as long as it lives


def test_ranks_that_all_hang_are_ended_in_time_with_what_they_started(tmp_path: Path) -> None:
    program = (
        "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
        f"open(f'{tmp_path}/{{rank}}', 'w').write(str(child.pid))\ntime.sleep(60)"
    )
    with pytest.raises(RankLostError, match=r"rank 0, rank 1 of 2 did not end within 1 s"):
        run_ranks(tmp_path, program, timeout_s=1.0)
    for rank in ("0", "1"):
        with pytest.raises(ProcessLookupError):  # noqa: PT012
            for _ in range(200):  # until whoever inherits it has noticed
                os.kill(int((tmp_path / rank).read_text()), 0)
                time.sleep(0.05)


def test_a_rank_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    message = "rank 0 of 2: RankLostError: rank 1 did not come within 1 s: ended, stopped, or never started"
    with pytest.raises(RankLostError, match=message), process_group(RankPlace(0, 2, 0), 1.0):
        pass


def test_all_ranks_say_alike_who_is_missing_as_soon_as_one_of_them_does() -> None:
    """Else each would find rank 0 gone, which keeps the store and leaves first."""
    store = HashStore()
    boards = [Board(store, rank, 4) for rank in (0, 2)]
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(board.wait_for_all, 0.2) for board in boards]
        said = {str(future.exception(timeout=5.0)) for future in waiting}
    assert said == {"ranks 1, 3 did not come within 0.2 s: ended, stopped, or never started"}


def test_a_port_in_use_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with (
            pytest.raises(ValueError, match=r"MASTER_PORT \d+ of 127\.0\.0\.1 is in use: give another"),
            process_group(RankPlace(0, 1, 0), 5.0),
        ):
            pass


def test_a_port_at_which_another_program_listens_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and never answers, for which torch has no timeout."""
    monkeypatch.setattr("verify.sharded.ranks._LAST_WORDS_S", 0.2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(other.getsockname()[1]))
        with (
            pytest.raises(
                RankLostError, match=r"rank 1: whoever listens at 127\.0\.0\.1, port \d+ gave no answer within 1"
            ),
            process_group(RankPlace(1, 2, 1), 1.0),
        ):
            pass

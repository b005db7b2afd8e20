"""However pieces are shared, the results are the same; however a worker or the program ends, nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

import verify
from verify.taking_turns import Traits
from verify.workers import Begin, WorkerError, work_through

ROOT = Path(verify.__file__).resolve().parents[1]


class _UnpicklableError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.handle = lambda: None


class _TwoArgumentsError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def _in_two(work: Callable[[int, Begin], object], num_pieces: int = 4) -> list[object]:
    return work_through(range(num_pieces), work, lambda text: None, num_processes=2)


def test_results_come_in_the_order_of_the_pieces_and_from_other_processes() -> None:
    def work(piece: int, begin: Begin) -> tuple[int, int]:
        time.sleep(0.05 if piece == 0 else 0)  # the first is the last to be done
        return piece, os.getpid()

    results = work_through(range(7), work, lambda text: None, num_processes=2)
    assert [piece for piece, _ in results] == list(range(7))
    assert os.getpid() not in {pid for _, pid in results}
    assert len({pid for _, pid in results}) == 2
    assert active_children() == []


def test_one_process_is_this_one() -> None:
    assert (
        work_through([1, 2], lambda piece, begin: os.getpid(), lambda text: None, num_processes=1) == [os.getpid()] * 2
    )


@pytest.mark.parametrize("num_processes", [1, 2, 5])
def test_every_step_is_told_to_the_parent(num_processes: int) -> None:
    told: list[str] = []

    def work(piece: int, begin: Begin) -> None:
        for step in "ab":
            begin(f"{piece}{step}")

    work_through(range(3), work, told.append, num_processes=num_processes)
    assert sorted(told) == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_a_worker_keeps_what_it_has_from_piece_to_piece() -> None:
    seen: list[int] = []

    def work(piece: int, begin: Begin) -> int:
        seen.append(piece)
        return len(seen)

    assert sum(work_through(range(6), work, lambda text: None, num_processes=2)) >= 12  # 1+2+3 twice, or less evenly
    assert seen == [], "what a worker keeps is its own"


def test_what_is_done_meanwhile_is_done_here_once_all_others_work() -> None:
    ready = os.pipe()

    def work(piece: int, begin: Begin) -> int:
        os.write(ready[1], b".")
        return piece

    told: list[bytes] = []

    def meanwhile() -> None:
        told.extend(os.read(ready[0], 1) for _ in range(2))

    assert work_through(range(3), work, lambda text: None, num_processes=2, meanwhile=meanwhile) == [0, 1, 2]
    assert told == [b".", b"."]
    work_through(range(3), work, lambda text: None, num_processes=1, meanwhile=pytest.fail)


def test_an_error_meanwhile_leaves_nobody_behind() -> None:
    def meanwhile() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        work_through(
            [60, 60], lambda piece, begin: time.sleep(piece), lambda t: None, num_processes=2, meanwhile=meanwhile
        )
    assert active_children() == []


def test_a_worker_stays_with_the_kind_of_pieces_that_it_began_with() -> None:
    pieces = ["case", "check"] * 4
    done = work_through(
        pieces,
        lambda piece, begin: (piece, os.getpid(), time.sleep(0.05)),
        lambda text: None,
        num_processes=2,
        traits=lambda piece: Traits(kind=piece),
    )
    assert [piece for piece, *_ in done] == pieces
    assert len({(piece, pid) for piece, pid, _ in done}) <= 3, "one may help the other at the end"


def test_tensors_come_back_bit_for_bit_as_values_of_their_own() -> None:
    (result,) = _in_two(lambda piece, begin: torch.full((3,), 0.1, dtype=torch.float64), num_pieces=1)
    assert isinstance(result, torch.Tensor)
    assert torch.equal(result, torch.full((3,), 0.1, dtype=torch.float64))
    assert not result.is_shared()


def test_what_a_piece_raises_is_raised_here_with_the_place() -> None:
    def work(piece: int, begin: Begin) -> None:
        if piece == 1:
            raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing") as raised:
        _in_two(work)
    assert raised.value.args == ("no such thing",)
    assert "In a worker process" in raised.value.__notes__[0]
    assert "in work" in raised.value.__notes__[0]
    assert active_children() == []


@pytest.mark.parametrize(
    ("kind", "name"), [(_UnpicklableError, "_UnpicklableError"), (_TwoArgumentsError, "_TwoArgumentsError")]
)
def test_an_error_that_cannot_be_handed_over_is_told_in_words(kind: Callable[[str, str], Exception], name: str) -> None:
    def work(piece: int, begin: Begin) -> None:
        raise kind("one", "two")

    with pytest.raises(WorkerError, match="one and two") as raised:
        _in_two(work)
    assert str(raised.value) == f"{name}: one and two"


class _UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_error_that_cannot_be_read_is_told_by_its_class() -> None:
    def work(piece: int, begin: Begin) -> None:
        raise _UnreadableError

    with pytest.raises(WorkerError) as raised:
        _in_two(work)
    assert str(raised.value) == "_UnreadableError: a _UnreadableError that cannot be read"


def test_a_result_that_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises(Exception, match="pickle"):
        _in_two(lambda piece, begin: lambda: None)


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"was ended by SIGKILL \(out of memory\?\) at the third"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "was ended by SIGTERM at the third"),
        (lambda: os._exit(0), "ended with status 0 at the third"),
        (lambda: sys.exit(0), "^SystemExit: 0"),
    ],
)
def test_a_worker_that_ends_early_ends_the_run(ending: Callable[[], None], message: str) -> None:
    def work(piece: int, begin: Begin) -> None:
        if piece == 2:
            begin("the third")
            ending()

    with pytest.raises(WorkerError, match=message):
        _in_two(work)
    assert active_children() == []


PROGRAM = """
import os, signal, sys, time
from verify.workers import work_through
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are begun with it ignored
def work(piece, begin):
    begin(str(os.getpid()))
    time.sleep(60)
    return 0
try:
    work_through(range(2), work, lambda text: print(text, flush=True), num_processes=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("of_the_group", [False, True], ids=["of the parent", "of all"])
def test_whatever_ends_the_program_ends_its_workers(number: signal.Signals, of_the_group: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stderr is not None
        workers = [int(program.stdout.readline()) for _ in range(2)]
        (os.killpg if of_the_group else os.kill)(program.pid, number)
        assert program.wait(timeout=10) == (130 if number == signal.SIGINT else -number)
        assert program.stderr.read() == "", "read to its end: no worker holds it open"
    assert not any(map(_is_running, workers))


def _is_running(pid: int) -> bool:
    for _ in range(100):  # an orphan is there until the system has waited for it
        try:
            if Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.05)
    return True

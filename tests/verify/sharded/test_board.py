"""Who is said to be lost, and that all ranks say the same; ranks are threads here that share a store."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from verify.sharded import board, whereabouts
from verify.sharded.board import Board, RankInputError, RankLostError, SaidByRank0Error
from verify.subject import SubjectError


@pytest.fixture(autouse=True)
def _answers_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("ANSWER_S", 1.0), ("ALIKE_S", 0.2), ("BEAT_S", 0.02), ("DEAD_S", 0.4)):
        monkeypatch.setattr(board, name, seconds)


DEAD = "dead"
HANGS = "hangs"
Ends = Exception | str
CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
TIMED_OUT = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc] Timed out waiting 1000ms")


def raised_by(*ends: Ends, after_s: Sequence[float] = ()) -> list[Exception | None]:
    """What each rank raises in the end, where it first raised this, ended without a word, or hangs."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    over = threading.Event()

    def run(rank: int) -> Exception | None:
        error = ends[rank]
        if error == DEAD:
            return None
        of_rank = Board(store.clone(), rank, len(ends))
        with of_rank.beating():
            if isinstance(error, str):
                over.wait(30)
                return None
            time.sleep(after_s[rank] if after_s else 0.0)
            try:
                of_rank.raise_for_all(error)
            except Exception as raised:
                return raised
            return error

    with ThreadPoolExecutor(len(ends)) as pool:
        futures = [pool.submit(run, rank) for rank in range(len(ends))]
        for future, end in zip(futures, ends, strict=True):
            if not isinstance(end, str):
                future.result()
        over.set()
        return [future.result() for future in futures]


def test_what_all_ranks_refuse_is_said_by_rank_0_as_it_is() -> None:
    errors = [ValueError("no case"), ValueError("no case")]
    first, second = raised_by(*errors)
    assert first is errors[0]
    assert isinstance(second, SaidByRank0Error)
    assert (str(second), second.status) == ("no case", 2)


def test_a_rank_that_failed_by_itself_is_named_by_those_whose_collective_broke() -> None:
    closed, refused = raised_by(CLOSED, ValueError("row 7 has no prompt"), after_s=(0.5, 0.0))
    assert isinstance(refused, RankInputError)
    assert isinstance(closed, RankInputError)
    assert str(closed) == str(refused) == "rank 1 of 2: row 7 has no prompt"


def test_an_error_that_is_no_input_is_no_input_elsewhere() -> None:
    closed, failed = raised_by(CLOSED, MemoryError("30 GiB"), after_s=(0.5, 0.0))
    assert isinstance(closed, RankLostError)
    assert str(closed) == str(failed) == "rank 1 of 2: MemoryError: 30 GiB"


def test_a_collective_that_broke_inside_another_error_is_no_cause() -> None:
    wrapped = SubjectError("subject x raised")
    wrapped.__cause__ = CLOSED
    assert str(raised_by(wrapped, TypeError("no model"))[0]) == "rank 1 of 2: TypeError: no model"


def test_a_reduction_that_the_backend_does_not_have_is_said_as_it_is_and_no_rank_was_lost() -> None:
    refused = [RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo") for _ in range(2)]
    first, second = raised_by(*refused)
    assert first is refused[0]
    assert (str(second), type(second)) == ("RuntimeError: Cannot use ReduceOp.PREMUL_SUM with Gloo", SaidByRank0Error)


def test_a_rank_that_ended_without_a_word_is_named_and_one_that_waits_is_not() -> None:
    raised = raised_by(CLOSED, DEAD, HANGS)  # whoever is not connected to the dead rank waits on
    assert isinstance(raised[0], RankLostError)
    assert str(raised[0]).startswith(
        "rank 1 of 3 ended or was stopped without a word; rank 0 noticed: RuntimeError: [gloo"
    )


def test_a_rank_that_lives_and_says_nothing_hangs() -> None:
    first, _, third = raised_by(TIMED_OUT, HANGS, TIMED_OUT)
    assert str(first).startswith("rank 1 of 3 hangs, and gave no answer for 1 s; rank 1 was at test_board.py:")
    assert "; rank 0 noticed: " in str(first)
    assert isinstance(third, SaidByRank0Error)
    assert third.status == 3


def test_several_ranks_that_say_nothing_are_all_named() -> None:
    assert str(raised_by(TIMED_OUT, HANGS, HANGS)[0]).startswith("ranks 1, 2 of 3 hang")


def test_ranks_that_all_lost_each_other_name_the_first_to_notice() -> None:
    first, _ = raised_by(CLOSED, TIMED_OUT, after_s=(0.0, 0.3))
    assert str(first).startswith("the ranks lost each other; rank 0 noticed first")


def test_ranks_in_different_collectives_are_named_with_the_line_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whereabouts, "of_error", lambda error: f"in {error.__notes__[0]} at mine.py:3 (loss)")
    lone, waits = RuntimeError(str(TIMED_OUT)), RuntimeError(str(CLOSED))
    lone.add_note("all_reduce")
    waits.add_note("all_gather")
    first, _ = raised_by(lone, waits)
    assert str(first).startswith(
        "the ranks lost each other in different places (a collective that not all of them call?); "
        "rank 0 was in all_reduce at mine.py:3 (loss); rank 1 was in all_gather at mine.py:3 (loss); "
    )


def test_a_keeper_of_the_store_that_was_stopped_is_named_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the store of a stopped process is never answered, and no timeout of the store ends it."""
    over = threading.Event()
    monkeypatch.setattr(Board, "_tell", lambda of_rank, error: over.wait(30))
    (raised, _) = raised_by(TIMED_OUT, HANGS)
    over.set()
    assert isinstance(raised, RankLostError)
    assert str(raised).startswith("rank 0 of 2, or torchrun beside it, keeps the store of the group, which gave no")


def spots(*modules: str) -> list[whereabouts.Spot]:
    """Calls of a stack, outermost first; functions are named after their modules."""
    return [whereabouts.Spot(name, f"/x/{name}.py", line, f"of_{name}") for line, name in enumerate(modules)]


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        (["runpy", "__main__", "verify.cli", "mine", "torch.nn"], "at mine.py:3 (of_mine)"),
        (["verify.run", "mine", "torch.distributed.distributed_c10d", "torch.distributed.work"],
         "in of_torch.distributed.distributed_c10d at mine.py:1 (of_mine)"),
        (["verify.run", "torch.distributed.fsdp"], "in of_torch.distributed.fsdp at verify.run.py:0 (of_verify.run)"),
        ([], ""),
    ],
)  # fmt: skip
def test_where_a_rank_is_is_the_line_of_users_code_that_called_the_collective(modules: list[str], words: str) -> None:
    assert whereabouts.in_words(spots(*modules)) == words


def test_a_rank_alone_is_not_named() -> None:
    error = RuntimeError("no memory")
    assert raised_by(error) == [error]

"""Who is said to be lost, and that all ranks say the same; ranks are threads here that share a store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from verify.sharded import board
from verify.sharded.board import Board, RankInputError, RankLostError


@pytest.fixture(autouse=True)
def _answers_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "ANSWER_S", 1.0)


def raised_by(*errors: Exception | None) -> list[Exception | None]:
    """What each rank raises in the end, where it first raised this; None for a rank that never answers."""
    store = dist.HashStore()

    def fail(rank: int, error: Exception | None) -> Callable[[], Exception | None]:
        def run() -> Exception | None:
            if error is None:
                return None
            try:
                Board(store, rank, len(errors)).raise_for_all(error)
            except Exception as raised:
                return raised
            return error

        return run

    with ThreadPoolExecutor(len(errors)) as pool:
        futures = [pool.submit(fail(rank, error)) for rank, error in enumerate(errors)]
        return [future.result() for future in futures]


def test_all_ranks_raise_their_common_error_as_it_is() -> None:
    errors = [ValueError("no case"), ValueError("no case")]
    assert raised_by(*errors) == errors


@pytest.mark.parametrize("error", [ValueError("row 7"), RuntimeError("out of memory")])
def test_the_first_to_fail_is_named_by_all(error: Exception) -> None:
    expected = RankInputError if isinstance(error, ValueError) else RankLostError
    raised = raised_by(error, RuntimeError("connection closed"))
    kinds, texts = {type(each) for each in raised}, {str(each) for each in raised}
    assert kinds <= {RankInputError, RankLostError}
    assert len(texts) == 1
    if "rank 0" in texts.pop():  # threads: either may be first
        assert kinds == {expected}


def test_a_rank_without_an_answer_is_named_by_all_others() -> None:
    raised = raised_by(RuntimeError("closed"), None, RuntimeError("timed out"))
    for rank in (0, 2):
        assert isinstance(raised[rank], RankLostError)
        assert "rank 1 of 3 ended or hangs, and gave no answer" in str(raised[rank])


def test_several_ranks_without_an_answer_are_all_named() -> None:
    assert "ranks 1, 2 of 3 ended or hang" in str(raised_by(RuntimeError("closed"), None, None)[0])


def test_a_rank_alone_is_not_named() -> None:
    error = RuntimeError("no memory")
    assert raised_by(error) == [error]

"""Waiting for no longer than that for something that has no timeout of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def within(seconds: float, ask: Callable[[], _T]) -> _T:
    """What a call gives; where it does not come back in time it is left behind in its thread.

    A store waits without end for a process that was stopped, or that listens on its port and is no store.

    Args:
        seconds: How long to wait.
        ask: The call.

    Returns:
        What it returned.

    Raises:
        TimeoutError: It did not come back; else whatever it raised.
    """
    answer: Future[_T] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    return answer.result(seconds)

"""Interrupts that arrive while modules are imported."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_noted() -> Iterator[None]:
    """Let an interrupt in the context end it as one, whatever became of the exception where it was raised.

    Imports run foreign code, some of which goes on after any exception, or raises one of its own in its place.

    Raises:
        KeyboardInterrupt: There was an interrupt.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # ignored by whoever started the program, or answered by somebody else
        return
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if noted:
            raise KeyboardInterrupt

"""A run of foreign code in a process of its own, so that whatever ends that process cannot pass for a verdict.

``os._exit(0)`` in a subject ends the process with the status of a PASS, and nothing inside it can prevent that; a crash
in a kernel or the system's hunt for memory end it without a word. The parent does nothing but wait: it believes a
status only if the run handed it over before it ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
_WATCHED = (*_FORWARDED, signal.SIGINT)


class EndedEarlyError(Exception):
    """The process of a run ended before the run did."""


def names_foreign_code(arguments: Sequence[str]) -> bool:
    """Whether the command line names code of the user's, ``origin:NAME``: a Windows drive or cuda:0 counts, too."""
    return any(":" in argument for argument in arguments)


def supervised(run: Callable[[], int]) -> int:
    """Run in a child process and return the status that it handed over.

    The child is forked, which is safe and costs milliseconds as long as torch is not loaded and has no threads; where
    it is loaded already, or there is no fork, the run takes place here.

    Args:
        run: The run; its result is an exit status.

    Returns:
        What ``run`` returned.

    Raises:
        EndedEarlyError: The child ended without handing a status over.
    """
    if "torch" in sys.modules or not hasattr(os, "fork"):
        return run()
    receiver, sender = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # one that comes before it can be passed on waits
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.close(receiver)
        status = run()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(sender, bytes([status]))
        os._exit(status)  # what lies above this call is the parent's to do
    os.close(sender)
    with _signals_for(child):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        _, ended = os.waitpid(child, 0)
    os.set_blocking(receiver, False)  # a process that the run left behind may hold the other end open
    try:
        handed_over = os.read(receiver, 1)
    except BlockingIOError:
        handed_over = b""
    finally:
        os.close(receiver)
    if not handed_over:
        raise EndedEarlyError(_how(ended))
    return handed_over[0]


@contextmanager
def _signals_for(child: int) -> Iterator[None]:
    """An interrupt reaches both processes and is the child's to answer; what is sent to this one is passed on."""

    def forward(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _how(ended: int) -> str:
    code = os.waitstatus_to_exitcode(ended)
    # One of several ranks, as torchrun starts them: who it was.
    process = f"the process of rank {os.environ['RANK']}" if "RANK" in os.environ else "the process of the run"
    if code >= 0:
        return f"{process} ended with status {code} before the run was over: does a subject call os._exit?"
    name = signal.Signals(-code).name
    hint = "; out of memory?" if -code == signal.SIGKILL else ""
    return f"{process} was ended by {name} before the run was over{hint}"

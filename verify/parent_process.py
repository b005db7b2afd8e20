"""Processes that end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def end_with_the_parent() -> None:
    """Leave no worker behind, waiting for work, where the program is killed; does nothing in the program itself."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_with_the_launcher() -> None:
    """Let a rank, and what it has started, end with whoever started it, however that one ends.

    Its standard input is a pipe that nothing is written to: it closes with the process at its other end. From here on
    standard input is empty. The rank leads a session of its own, so that its process group is all that it has started.
    """
    launcher = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        while os.read(launcher, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()

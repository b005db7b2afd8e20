"""Progress of long work: a bar on a terminal, plain lines elsewhere. Always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def show_progress(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Show progress while the context is open.

    Args:
        quiet: Show nothing.

    Yields:
        A function of steps done, steps in all, and what is being done.
    """
    if quiet:
        yield lambda done, total, text: None
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        task = bar.add_task("starting", total=None)

        def advance(done: int, total: int, text: str) -> None:
            bar.start()  # not before the first step: the thread that draws it would not survive the forks of a run
            bar.update(task, completed=done, total=total, description=text)

        try:
            yield advance
        finally:
            bar.stop()
    else:
        yield _Lines().advance


def say_line(line: str) -> None:
    """Say what the user should read before the end; on standard error."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


class _Lines:
    def __init__(self) -> None:
        self._last = -_SECONDS_BETWEEN_LINES

    def advance(self, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)  # noqa: T201

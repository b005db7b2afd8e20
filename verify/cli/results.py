"""Handing a result over: files first, since a closed terminal must not cost them, and shown whatever became of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from reports.store import OutputError


def written_and_shown(write: Callable[[], Sequence[Path]], show: Callable[[], object]) -> Sequence[Path]:
    """Write a result, then show it; where it cannot be written it is shown even so.

    Args:
        write: Writes the files.
        show: Shows the result.

    Returns:
        What was written.

    Raises:
        OutputError: It could not be written (a disk that filled up during the run).
    """
    try:
        written = write()
    except OutputError:
        show()
        raise
    show()
    return written

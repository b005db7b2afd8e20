"""Number of threads that torch computes with, for the time of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Compute with that many threads while the context is open.

    A tiny model is faster with one: its operations take microseconds, and threads that wait for each other cost more
    than they save, several times more where another process wants the same cores.

    Args:
        count: Number of threads, or None to leave torch's own choice.
    """
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

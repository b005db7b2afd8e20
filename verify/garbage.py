"""Garbage collections, fewer than Python makes of itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 10_000
"""New objects between two collections; Python's own choice is 700, a handful of calls of a model."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage seldom while the context is open: a run on a small model makes none that is worth the search.

    Where a model is large, leave it be: what waits to be collected may hold activations.
    """
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)

"""Imports of torch, transformers and peft, without the garbage collector in their way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Import without collecting, and leave what was imported out of every later collection.

    Imports make a million objects, none of them garbage, and each collection walks all of them: a tenth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

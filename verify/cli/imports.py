"""Imports of torch, transformers and peft, without the garbage collector in their way."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from verify.cli.interrupts import interrupts_noted
from verify.cli.model_listing import list_models_once

HELP_JOBS = "Processes that share the work; as many as pay unless given. The result is the same with any number."


@contextmanager
def heavy_imports() -> Iterator[bool]:
    """Import without collecting, and leave what was imported out of every later collection.

    Imports make a million objects, none of them garbage, and each collection walks all of them: a tenth of the time.

    Yields:
        Whether torch is loaded here rather than before, so that it has computed nothing when the imports are done.

    Raises:
        KeyboardInterrupt: There was an interrupt.
    """
    fresh = "torch" not in sys.modules
    gc.disable()
    try:
        with interrupts_noted():
            list_models_once()
            yield fresh
    finally:
        gc.freeze()
        gc.enable()

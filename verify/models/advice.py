"""What transformers says about a model while it is being built is no news about a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_advice() -> Iterator[None]:
    """Hold back transformers' warnings while the context is open; its errors come through."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)

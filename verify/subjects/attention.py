"""The attention implementation of a stock model, switched for as long as a subject computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def attention_set_to(model: Any, implementation: str) -> Iterator[None]:
    """Run with another attention implementation of transformers, and put back the one that was there.

    Args:
        model: A transformers model, wrapped or not.
        implementation: As transformers names it: "eager", "sdpa", ...
    """
    before = model.config._attn_implementation
    if before == implementation:
        yield
        return
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)

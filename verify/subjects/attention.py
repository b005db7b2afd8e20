"""The attention implementation of a stock model, switched for as long as a subject computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from verify.checks.checkpointed import is_checkpointed
from verify.subject import Support


def gradients_under(model: Any, implementation: str | None) -> Support:
    """Whether gradients can be had of a pass under :func:`attention_set_to` that is over when backward runs.

    Args:
        model: A transformers model, wrapped or not.
        implementation: The attention implementation of the pass; None for the model's own.

    Returns:
        Not where the pass would be run again under another attention implementation.
    """
    before = model.config._attn_implementation
    if implementation in (None, before) or not is_checkpointed(model):
        return Support(True)
    return Support(
        False,
        f"under gradient checkpointing layers would run again with attention {before} instead of {implementation}",
    )


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

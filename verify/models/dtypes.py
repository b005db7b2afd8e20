"""Torch's side of what a run computes in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from verify.precision import AUTOCAST, DTYPE_NAMES

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}


def dtype_of_weights(precision: str) -> torch.dtype:
    """The dtype in which the model is built."""
    return torch.float32 if precision == AUTOCAST else DTYPES[precision]


@contextmanager
def computing_in(precision: str, device: str, *, weights_stay: bool = True) -> Iterator[None]:
    """The context of passes in a precision.

    Args:
        precision: One of ``verify.precision.PRECISIONS``.
        device: The torch device of the model.
        weights_stay: Weights do not change inside, so that autocast may keep what it cast, as it does by default.

    Yields:
        Nothing.
    """
    if precision != AUTOCAST:
        yield
        return
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, cache_enabled=weights_stay):
        yield

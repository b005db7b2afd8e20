"""The rows and batches of this project's own packing, for plans that are made from lengths."""

from __future__ import annotations

from packed_impl.bins import (
    GroupDoesNotFit,
    Rows,
    batches_in_order,
    first_fit_decreasing,
    length_bucketed_batches,
    length_sorted_batches,
)

__all__ = [
    "GroupDoesNotFit",
    "Rows",
    "batches_in_order",
    "first_fit_decreasing",
    "length_bucketed_batches",
    "length_sorted_batches",
]

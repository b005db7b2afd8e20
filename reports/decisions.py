"""Decisions of a run in a line: pairs whose rewards prefer another response packed than unpacked, and accuracies."""

from __future__ import annotations

from reports.record import Record
from reports.words import count, plural


def decisions_line(record: Record) -> str:
    """Flips, and accuracy on both paths over all pairs of all cases, subjects and dtypes that were compared.

    Args:
        record: The record.

    Returns:
        One line; "" where no pair was decided.
    """
    parts = [result.decisions for result in record.results if result.decisions is not None]
    num_pairs = sum(part.num_pairs for part in parts)
    if not num_pairs:
        return ""
    flipped, ties = sum(part.flipped for part in parts), sum(part.ties for part in parts)
    packed = sum(part.halves_right for part in parts) / (2 * num_pairs)
    unpacked = sum(part.expected_halves_right for part in parts) / (2 * num_pairs)
    tied = f"; {plural(ties, 'tie')}, each one half" if ties else ""
    return (
        f"decisions: {count(flipped)} of {count(num_pairs)} flipped between packed and unpacked; reward accuracy "
        f"{packed:.4f} packed, {unpacked:.4f} unpacked{tied}"
    )

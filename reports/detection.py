"""What a run was shown to catch and what it could not have seen, in the words that all renderings share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.record import Record
from reports.record_faults import BlindSpotRecord, PlantedRecord
from reports.words import NONE, number, plural

FAMILIES = ("log-probs", "ref log-probs", "rewards, margins, loss", "gradients", "structure", "packed path ran")
"""Families of checks in the order of the columns."""
NOTHING_PLANTED = "no fault was planted in this run"


def families(record: Record) -> tuple[str, ...]:
    """The families of checks that any planted fault was held against, those of this list first."""
    met = dict.fromkeys(family for planted in record.planted for family in planted.margins)
    return (*(family for family in FAMILIES if family in met), *(family for family in met if family not in FAMILIES))


def missed(record: Record) -> tuple[PlantedRecord, ...]:
    """The planted faults that nothing caught."""
    return tuple(planted for planted in record.planted if not planted.killed)


def margin(planted: PlantedRecord, family: str) -> str:
    """Share of the budget that a fault took in a family of checks, or "caught" where the check has no budget.

    Args:
        planted: The fault.
        family: The family.

    Returns:
        A number with three digits; "-" where the family did not judge it.
    """
    value = planted.margins.get(family)
    if value is None:
        return NONE
    return "caught" if math.isinf(value) else number(value)


def caught(record: Record) -> str:
    """What the run would have caught, e.g. "16 of 16 planted faults in 12 stages, each at least 43.4x over budget".

    Args:
        record: The record.

    Returns:
        One phrase; it says so where nothing was planted.
    """
    if not record.planted:
        return NOTHING_PLANTED
    killed = [planted for planted in record.planted if planted.killed]
    dtypes = list(dict.fromkeys(planted.dtype for planted in record.planted))
    where = f" ({', '.join(dtypes)})" if len(dtypes) > 1 else ""
    total = plural(len(record.planted), "planted fault")
    stages = plural(len({planted.stage for planted in killed}), "stage")
    line = f"{len(killed)} of {total}{where}" + (f" in {stages}" if killed else "")
    least = min((planted.margin for planted in killed), default=math.inf)
    return f"{line}, each at least {number(least)}x its budget" if math.isfinite(least) else line


def unseen(record: Record, at_most: int) -> str:
    """What the run would not have seen, the kinds with most faults first.

    Args:
        record: The record.
        at_most: How many kinds to name.

    Returns:
        One phrase, e.g. "faults of label smoothing (1); faults of the gradients of flex (16)"; "" where it names none.
    """
    spots = sorted(record.blind_spots, key=lambda spot: -len(spot.faults))
    names = [kind(spot) for spot in spots[:at_most]]
    if len(spots) > at_most:
        names.append(f"{plural(len(spots) - at_most, 'kind')} more, in the report that --out writes")
    return "; ".join(names)


def kind(spot: BlindSpotRecord) -> str:
    """A kind of fault with the number of its faults in the catalogue."""
    return f"{spot.what} ({len(spot.faults)})" if spot.faults else spot.what


def proof_lines(record: Record, at_most: int) -> list[str]:
    """What a verdict rests on beside its counts: what the run would have caught, and what not.

    Args:
        record: The record.
        at_most: How many kinds of unseen faults to name.

    Returns:
        One or two lines.
    """
    lines = [f"would have caught: {caught(record)}" if record.planted else caught(record)]
    if names := unseen(record, at_most):
        counted = " (in brackets: faults of the catalogue)" if any(spot.faults for spot in record.blind_spots) else ""
        lines.append(f"would not have seen{counted}: {names}")
    return lines


def shown_faults(faults: Sequence[str]) -> str:
    """Names of faults in a cell."""
    return ", ".join(faults) or NONE

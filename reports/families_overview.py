"""What all renderings of model families say in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from reports.families_record import FamiliesRecord, FamilyRecord, WayOutcome, WayRecord

_WORDS: dict[WayOutcome, str] = {"leaks": "LEAKS", "other-values": "other values"}


def measured(record: FamiliesRecord) -> list[FamilyRecord]:
    """The families that were measured; the others have a reason instead."""
    return [family for family in record.families if family.ways]


def summary(record: FamiliesRecord) -> str:
    """With what was measured, and how much of it."""
    packages = record.environment.packages
    return (
        f"transformers {packages['transformers']}, torch {packages['torch']}, {record.environment.device}: "
        f"{len(measured(record))} of {len(record.families)} families measured"
    )


def score(way: WayRecord) -> str:
    """How much arrives, where something does; else nothing."""
    return _short(way.score) if way.outcome in _WORDS and way.score is not None else ""


def shown(way: WayRecord) -> str:
    """An outcome in a cell, e.g. "LEAKS 0.97"."""
    if way.outcome == "isolated" and not way.bit_identical:
        return "isolated, but for rounding"
    return f"{_WORDS.get(way.outcome, way.outcome)} {score(way)}".rstrip()


def reasons(families: Sequence[FamilyRecord]) -> list[tuple[str, list[WayRecord], str]]:
    """Each reason of each measured family, with the ways of calling that gave it."""
    lines = []
    for family in families:
        ways: dict[str, list[WayRecord]] = {}
        for way in family.ways:
            if way.reason:
                ways.setdefault(way.reason, []).append(way)
        lines += [(family.model_type, of_reason, reason) for reason, of_reason in ways.items()]
    return lines


def _short(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 or not value else f"{value:.0e}".replace("e-0", "e-")

"""Whether all ranks run the same: arguments, versions, settings, devices, files. Which rank differs, and in what."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from reports.preflight_record import ranks_in_words
from reports.words import plural
from verify.preflight.finding import Finding, go, no_go

_MOST_NAMED = 4
ABSENT = "absent"


def digest(values: Mapping[str, object]) -> str:
    """A short digest of values by name; equal values give an equal one."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def agreement(probe: str, by_rank: Sequence[Mapping[str, str]], *, hint: str) -> Finding:
    """Hold what every rank has against what most of them have.

    Args:
        probe: Name of the probe.
        by_rank: What each rank has, by name, in the order of the ranks.
        hint: What to do where they differ.

    Returns:
        GO with the number of values and their digest, or NO-GO with each difference and the ranks that have it.
    """
    if len({digest(values) for values in by_rank}) == 1:
        return go(
            probe,
            f"equal on {plural(len(by_rank), 'rank')}: {plural(len(by_rank[0]), 'value')}, digest {digest(by_rank[0])}",
        )
    differences = [line for name in _names(by_rank) for line in _difference(name, by_rank)]
    more = f"; and {len(differences) - _MOST_NAMED} more" if len(differences) > _MOST_NAMED else ""
    return no_go(probe, "; ".join(differences[:_MOST_NAMED]) + more, hint)


def _names(by_rank: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for values in by_rank for name in values))


def _difference(name: str, by_rank: Sequence[Mapping[str, str]]) -> list[str]:
    """E.g. ["torch is 2.12.0 on rank 1, 2.13.0 on rank 0"]; of two that occur as often, that of rank 0 comes last."""
    values = [values.get(name, ABSENT) for values in by_rank]
    counts = Counter(values)
    if len(counts) == 1:
        return []
    usual = max(counts, key=lambda value: (counts[value], value == values[0]))
    others = [value for value in counts if value != usual]
    ranks = {each: ranks_in_words(rank for rank, value in enumerate(values) if value == each) for each in counts}
    said = ", ".join(f"{value} on {ranks[value]}" for value in (*others, usual))
    return [f"{name} is {said}"]

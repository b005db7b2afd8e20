"""What all renderings of a kill matrix show: columns, marks, closing line, and what needs attention."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from reports.kill_matrix import WANTED_MARGIN, CatchRecord, ExactCheckName, KillMatrix, MutationRecord
from reports.words import NONE, number, plural

COLUMNS: dict[str, str] = {
    "per_token_logps": "log-probs",
    "ref_per_token_logps": "ref log-probs",
    "rewards": "rewards",
    "margins": "margins",
    "loss": "loss",
    "gradients": "gradients",
    "structure": "structure",
    "packed-ran": "packed ran",
    "exact": "exact checks",
}
"""Check to heading; the exact checks share a column."""

EXACT_LETTERS: dict[ExactCheckName, str] = {
    "branch-isolation": "b",
    "group-isolation": "g",
    "causality": "c",
    "reach": "r",
    "row-map": "m",
    "absolute-positions": "a",
    "permutation": "p",
    "repeat": "t",
    "normalisation": "n",
    "own-objective": "o",
    "optimizer-steps": "s",
    "gradient-checkpointing": "k",
    "dropout": "d",
    "no-cross-attention": "X",
    "no-boundary-target": "B",
    "no-padding-in-loss": "P",
    "positions-as-unpacked": "U",
    "same-number-of-targets": "T",
}
"""Exact check to its mark in that column."""

LEGEND = (
    "o: beyond the budget to the oracle; d: beyond the differential budget to the unpacked witness; "
    "x: caught by a check without a budget; exact checks: "
    + ", ".join(f"{letter} {check}" for check, letter in EXACT_LETTERS.items())
)
_MARKS = {"oracle": "o", "differential": "d", "": "x"}


def mark(mutation: MutationRecord, check: str) -> str:
    """How a check caught a mutation: letters of the budgets that it broke, or "-"."""
    if check == "exact":
        caught = {catch.check for catch in mutation.catches if catch.killed}
        return "".join(letter for name, letter in EXACT_LETTERS.items() if name in caught) or NONE
    marks = [_MARKS[catch.distance] for catch in mutation.catches if catch.check == check and catch.killed]
    return "".join(sorted(marks, reverse=True)) or NONE


def strongest(mutation: MutationRecord) -> CatchRecord | None:
    """The catch with the largest margin, or None where nothing was caught."""
    killing = [catch for catch in mutation.catches if catch.killed]
    return max(killing, key=lambda catch: catch.margin, default=None)


def margin_words(mutation: MutationRecord) -> str:
    """Measured / budget on the case that showed it most, and on the one that showed it least."""
    return f"{number(mutation.margin)}, {number(mutation.weakest_margin)} on case {mutation.weakest_case or NONE}"


def needs_attention(matrix: KillMatrix) -> Sequence[MutationRecord]:
    """Faults that were not killed where they must be, harmless changes that were not left alone."""
    return [mutation for mutation in matrix.mutations if not mutation.as_wanted]


def weak(matrix: KillMatrix) -> Sequence[MutationRecord]:
    """Killed faults with less margin than wanted, weakest first."""
    return sorted((m for m in matrix.mutations if m.weak), key=lambda m: m.deciding_margin)


def hidden(matrix: KillMatrix) -> Sequence[MutationRecord]:
    """Faults that were not caught in a dtype whose rounding hides them."""
    return [mutation for mutation in matrix.mutations if mutation.outcome == "hidden"]


def sole_checks(matrix: KillMatrix) -> dict[str, list[str]]:
    """Family of checks to the faults that nothing else caught, in order of the families met."""
    alone: dict[str, list[str]] = {}
    for mutation in matrix.of_kind("fault"):
        if mutation.sole_check and mutation.label not in alone.setdefault(mutation.sole_check, []):
            alone[mutation.sole_check].append(mutation.label)
    return alone


def closing_line(matrix: KillMatrix) -> str:
    """The whole run in one line: what was caught, with how much to spare, and what was left alone."""
    faults, controls = matrix.of_kind("fault"), matrix.of_kind("equivalent")
    outcomes = Counter(mutation.outcome for mutation in matrix.mutations)
    expected = len(faults) - outcomes["hidden"]
    parts = [f"{outcomes['killed']} of {plural(expected, 'planted fault')} killed"] if expected else []
    if outcomes["hidden"]:
        parts.append(f"{outcomes['hidden']} hidden by rounding, as expected")
    parts.append(f"{outcomes['flagged']} of {plural(len(controls), 'harmless change')} flagged")
    parts += [f"{outcomes[name]} {name}" for name in ("error", "inconclusive") if outcomes[name]]
    for dtype, wanted in WANTED_MARGIN.items():
        killed = [m for m in faults if m.outcome == "killed" and m.dtype == dtype]
        margins = [m.deciding_margin for m in killed if math.isfinite(m.deciding_margin)]
        if margins:
            below = sum(mutation.weak for mutation in killed)
            short = f", {below} BELOW" if below else ""
            parts.append(f"smallest fault / budget in {dtype} {number(min(margins))} (wanted: {number(wanted)}{short})")
    if controls:
        parts.append(f"largest harmless / budget {number(max(m.margin for m in controls))}")
    return ", ".join(parts)

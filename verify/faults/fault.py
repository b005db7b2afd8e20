"""A fault as a value: which stage it replaces, what it imitates, and where it can be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from verify.cases import Case
from verify.faults.conditions import EVERYWHERE, Condition
from verify.faults.stages import StageName

CheckName = Literal["parity", "packed-ran"]
CHECKS: tuple[CheckName, ...] = ("parity", "packed-ran")


@dataclass(frozen=True, slots=True)
class Packing:
    """The packed layout that a fault is planted in.

    Args:
        segments: "shared-prompt" or "repeat-prompt-token".
        rows: "one-row" or "row-per-group" (several rows, uneven ones padded).
    """

    segments: str = "shared-prompt"
    rows: str = "one-row"


ROW_PER_GROUP = Packing(rows="row-per-group")
REPEAT_PROMPT_TOKEN = Packing(segments="repeat-prompt-token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One stage of the packed computation, replaced.

    Args:
        name: Stable id.
        stage: The stage.
        replacement: A module-level function, or a partial of one, so that the value pickles. Takes the honest function
            of the stage and then the stage's arguments.
        what: What is different, in one sentence.
        imitates: Entries of the public list in docs/faults.md.
        bites_where: Cases on which it can make a difference.
        packing: The layout it is planted in.
    """

    name: str
    stage: StageName
    replacement: Callable[..., Any] = field(repr=False)
    what: str
    imitates: tuple[str, ...] = ()
    bites_where: Condition = EVERYWHERE
    packing: Packing = Packing()

    def bites(self, case: Case) -> bool:
        """Whether the case has what it takes."""
        return self.bites_where.holds(case)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Mutation):
    """A mutation that computes something else.

    Args:
        signature: Which tokens or tensors are off, and roughly by how much.
        invisible_where: Where no comparison of values can see it.
        must_kill: The checks that must catch it.
    """

    signature: str
    invisible_where: str = ""
    must_kill: tuple[CheckName, ...] = ("parity",)


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivalentMutant(Mutation):
    """A mutation that provably computes the same, up to rounding: flagging it is a false alarm.

    Args:
        why_equal: The proof, in words.
    """

    why_equal: str

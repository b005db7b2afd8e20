"""The pieces that a run of the gate is cut into, and when each is taken up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.cases import Case
from verify.checks.check import ExactCheck
from verify.subject import Subject
from verify.taking_turns import Traits

if TYPE_CHECKING:
    from verify.gate import GateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a run that depends on no other: a case with all subjects, or the exact checks of one subject.

    Exactly one of ``case`` and ``subject`` is given.
    """

    dtype: str
    case: Case | None = None
    subject: Subject | None = None


def pieces_of(request: GateRequest, checks: Sequence[ExactCheck] = ()) -> list[Piece]:
    """The pieces of a run, in the order in which they are reported."""
    pieces: list[Piece] = []
    for dtype in request.dtypes:
        pieces += [Piece(dtype=dtype, case=case) for case in request.cases]
        pieces += [Piece(dtype=dtype, subject=subject) for subject in request.subjects if checks]
    return pieces


def traits_of(piece: Piece) -> Traits:
    """When a piece is taken up: dtype by dtype, so that a process holds the models of one.

    The exact checks of all subjects need the same yardsticks, measured in each process that does some.
    """
    if piece.case is None:
        return Traits(stage=piece.dtype, kind="exact checks")
    tokens = sum(len(group.prompt_ids) + len(ids) for group in piece.case.groups for ids in group.completions)
    return Traits(stage=piece.dtype, kind="cases", size=tokens)

"""What the cases of a calibration are: one of the three kinds of case, or groups under every preference objective."""

from __future__ import annotations

from typing import Literal

from verify.cases import CASE_KINDS, CaseKind

DrawnKind = CaseKind | Literal["objectives"]
DRAWN_KINDS: tuple[DrawnKind, ...] = (*CASE_KINDS, "objectives")


def case_kind(kind: DrawnKind) -> CaseKind:
    """The kind of case that a subject must take."""
    return "groups" if kind == "objectives" else kind

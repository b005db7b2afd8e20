"""Every exact check, in a fixed order."""

from __future__ import annotations

from verify.checks.absolute_positions import ABSOLUTE_POSITIONS
from verify.checks.branch_isolation import BRANCH_ISOLATION
from verify.checks.causality import CAUSALITY
from verify.checks.check import ExactCheck
from verify.checks.group_isolation import GROUP_ISOLATION
from verify.checks.normalisation import NORMALISATION
from verify.checks.own_objective import OWN_OBJECTIVE
from verify.checks.permutation import PERMUTATION
from verify.checks.reach import REACH
from verify.checks.repeat import REPEAT
from verify.checks.row_map import ROW_MAP

EXACT_CHECKS: tuple[ExactCheck, ...] = (
    BRANCH_ISOLATION,
    GROUP_ISOLATION,
    CAUSALITY,
    REACH,
    ROW_MAP,
    ABSOLUTE_POSITIONS,
    PERMUTATION,
    REPEAT,
    NORMALISATION,
    OWN_OBJECTIVE,
)
FEW_PASSES: tuple[ExactCheck, ...] = (BRANCH_ISOLATION, ROW_MAP, ABSOLUTE_POSITIONS)
"""For a large model: three passes of it; the rest needs none, or runs on a model of its own."""

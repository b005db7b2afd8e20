"""Every exact check, in a fixed order."""

from __future__ import annotations

from dataclasses import replace

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
from verify.checks.supervised_packing import (
    NO_BOUNDARY_TARGET,
    NO_CROSS_ATTENTION,
    NO_PADDING_IN_LOSS,
    POSITIONS_AS_UNPACKED,
    SAME_NUMBER_OF_TARGETS,
)

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
    NO_CROSS_ATTENTION,
    NO_BOUNDARY_TARGET,
    NO_PADDING_IN_LOSS,
    POSITIONS_AS_UNPACKED,
    SAME_NUMBER_OF_TARGETS,
)
FEW_PASSES: tuple[ExactCheck, ...] = (
    replace(BRANCH_ISOLATION, cases=("distinct-tokens",)),
    ROW_MAP,
    ABSOLUTE_POSITIONS,
)
"""For a large model: three passes of it, on pairs; the rest needs none, or runs on a model of its own."""

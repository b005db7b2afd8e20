"""Every exact check, in a fixed order."""

from __future__ import annotations

from dataclasses import replace

from verify.checks.absolute_positions import ABSOLUTE_POSITIONS
from verify.checks.branch_isolation import BRANCH_ISOLATION
from verify.checks.causality import CAUSALITY
from verify.checks.check import ExactCheck, ExactCheckName
from verify.checks.dropout import DROPOUT
from verify.checks.gradient_checkpointing import GRADIENT_CHECKPOINTING
from verify.checks.group_isolation import GROUP_ISOLATION
from verify.checks.normalisation import NORMALISATION
from verify.checks.optimizer_steps import OPTIMIZER_STEPS, QUICK_OPTIMIZER_STEPS
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
    OPTIMIZER_STEPS,
    GRADIENT_CHECKPOINTING,
    DROPOUT,
    NO_CROSS_ATTENTION,
    NO_BOUNDARY_TARGET,
    NO_PADDING_IN_LOSS,
    POSITIONS_AS_UNPACKED,
    SAME_NUMBER_OF_TARGETS,
)
MANY_PASSES: tuple[ExactCheckName, ...] = ("optimizer-steps", "gradient-checkpointing", "dropout")
"""Each takes as many passes as all others together: of planted faults those run it that it is there for."""
CHECKS_ONLY_IN_FULL: tuple[ExactCheckName, ...] = ("gradient-checkpointing", "dropout")
QUICK_CHECKS: tuple[ExactCheck, ...] = tuple(
    QUICK_OPTIMIZER_STEPS if check is OPTIMIZER_STEPS else check
    for check in EXACT_CHECKS
    if check.name not in CHECKS_ONLY_IN_FULL
)
"""For a quick run."""
FEW_PASSES: tuple[ExactCheck, ...] = (
    replace(BRANCH_ISOLATION, cases=("distinct-tokens",)),
    ROW_MAP,
    ABSOLUTE_POSITIONS,
)
"""For a large model: three passes of it, on pairs; the rest needs none, or runs on a model of its own."""
